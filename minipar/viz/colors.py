"""The colours of all pictures.  Colour-blind readers can tell PALETTE apart: Okabe & Ito (2008)."""

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW = "#CC79A7", "#56B4E9", "#F0E442"
WINE, OLIVE = "#882255", "#999933"      # four more, Tol (2021)
INDIGO, TEAL = "#332288", "#44AA99"
RED = "#C1121F"       # for what went wrong
BLACK, DARK, GREY, LIGHT = "#222222", "#777777", "#BBBBBB", "#E4E4E4"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW)
MANY = (*PALETTE, WINE, OLIVE, INDIGO, TEAL)

# One colour for each phase of a step and each lane of copies, in every picture.
PHASE = {"forward": BLUE, "again": ORANGE, "backward": VERMILION, "optimizer": GREEN}
COPY = {"copy out": INDIGO, "copy in": TEAL}
KIND = {**PHASE, "all_reduce": PURPLE, "broadcast": SKY, "activations": YELLOW,
        "gradients": ORANGE, "control": BLACK, "message": DARK, **COPY}
