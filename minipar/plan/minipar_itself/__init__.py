"""A step of minipar itself by formulas: the software `minipar` of a cluster, as `h100/minipar`.

    layer       seconds and bytes of a layer: minipar's operations and messages
    parts       the model's chain, and how minipar cuts it into stages
    memory      bytes of the fullest rank
    reductions  what gradients and gathered weights add to a step
    step        seconds of a step, by part

The other software of the files is other people's: they cut, keep and overlap differently.  What
these formulas say is what `minipar simulate` runs (docs/pages/simulating.md compares both).
"""
