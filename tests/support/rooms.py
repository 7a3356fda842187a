"""The rooms of minipar and their imports, which docs/pages/design.md shows.

    python -m tests.support.rooms       rewrites the picture and the table of the page
"""

import re
import textwrap
from graphlib import TopologicalSorter
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from tests.repository.test_layering import FILES, PACKAGE, ROOT, imported_modules, part_of

PAGE = ROOT / "docs" / "pages" / "design.md"
PICTURE = ROOT / "docs" / "pages" / "images" / "rooms.png"
BEGIN, END = "<!-- rooms: made by python -m tests.support.rooms -->", "<!-- end of rooms -->"
FACES = {"__init__", "__main__"}            # they gather names, and start the command line


def imports() -> dict[str, set[str]]:
    """The rooms that each room imports, itself apart."""
    found: dict[str, set[str]] = {}
    for file in FILES:
        modules = {module.split(".")[1] for module in imported_modules(file) if "." in module}
        rooms = {name for name in modules if (PACKAGE / name).is_dir()
                 or (PACKAGE / f"{name}.py").exists()}
        found.setdefault(part_of(file), set()).update(rooms - {part_of(file)})
    return {room: others - FACES for room, others in found.items() if room not in FACES}


def layers(graph: dict[str, set[str]]) -> list[list[str]]:
    """The rooms by floors: a room stands one floor above the highest that it imports."""
    floor: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():        # raises CycleError for a circle
        floor[room] = 1 + max((floor[other] for other in graph[room]), default=-1)
    return [sorted(room for room in graph if floor[room] == level)
            for level in range(max(floor.values()) + 1)]


def first_line(room: str) -> str:
    """The first line of a room's docstring."""
    place = PACKAGE / room / "__init__.py"
    text = (place if place.exists() else PACKAGE / f"{room}.py").read_text(encoding="utf-8")
    return re.match(r'"""(.*?)(?:"""|\n)', text)[1].rstrip()


def table(graph: dict[str, set[str]]) -> str:
    """The rooms from the ground up, with what each says of itself and what it imports."""
    rows = ["| room | | imports |", "| --- | --- | --- |"]
    rows += [f"| `{room}` | {first_line(room)} | {', '.join(sorted(graph[room])) or '–'} |"
             for level in layers(graph) for room in level]
    return "\n".join(rows)


def draw(graph: dict[str, set[str]]) -> Figure:
    """Rooms as boxes, floor by floor, each with what it says of itself."""
    floors = layers(graph)
    width = 1 / max(map(len, floors))
    figure = Figure(figsize=(13, 0.95 * len(floors) + 0.5), layout="constrained")
    axes = figure.subplots()
    for y, rooms in enumerate(floors):
        for i, room in enumerate(rooms):
            x = 0.5 + (i - len(rooms) / 2) * width
            axes.add_patch(FancyBboxPatch((x + 0.008, y + 0.06), width - 0.016, 0.86, zorder=2,
                                          facecolor="#e3eef8", edgecolor="#0072b2",
                                          boxstyle="round,pad=0,rounding_size=0.008"))
            axes.text(x + width / 2, y + 0.87, room, ha="center", va="top", fontsize=11,
                      weight="bold", zorder=3)
            caption = textwrap.fill(first_line(room).replace("`", ""), 36, max_lines=3,
                                    placeholder=" …")
            axes.text(x + width / 2, y + 0.6, caption, ha="center", va="top", fontsize=8, zorder=3)
    axes.annotate("", (-0.02, 0), (-0.02, len(floors)), annotation_clip=False,
                  arrowprops={"arrowstyle": "-|>", "color": "#d55e00", "lw": 2.5})
    axes.set(xlim=(-0.03, 1), ylim=(0, len(floors)))
    axes.set_title("The rooms of minipar: a room imports only from floors below its own",
                   fontsize=12, loc="left")
    axes.axis("off")
    return figure


def write(page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Put the table into the page, between its marks, and the picture beside it."""
    graph = imports()
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{table(graph)}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    draw(graph).savefig(picture, dpi=110)


if __name__ == "__main__":
    write()
