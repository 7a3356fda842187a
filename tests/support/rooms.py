"""The rooms of minipar and who imports whom, read from the imports: docs/pages/design.md shows them.

    python -m tests.support.rooms       writes the picture and the table of the page anew
"""

import re
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


def direct(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The imports that do not follow from others (the transitive reduction)."""
    def below(room: str) -> set[str]:
        return graph[room] | {far for other in graph[room] for far in below(other)}
    return {room: {other for other in others
                   if not any(other in below(third) for third in others - {other})}
            for room, others in graph.items()}


def first_line(room: str) -> str:
    """What a room's docstring says first."""
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
    """Rooms as boxes, floor by floor; an arrow goes down to each room that is imported directly."""
    floors = layers(graph)
    figure = Figure(figsize=(11, 1.05 * len(floors)), layout="constrained")
    axes = figure.subplots()
    places = {}
    for y, rooms in enumerate(floors):
        for i, room in enumerate(rooms):
            places[room] = ((i + 1) / (len(rooms) + 1) + (0.03 if y % 2 else -0.03), y)
    for room, others in direct(graph).items():
        for other in others:
            (x, y), (there, down) = places[room], places[other]
            axes.annotate("", (there, down + 0.24), (x, y - 0.24),
                          arrowprops={"arrowstyle": "->", "color": "0.55", "lw": 0.9})
    for room, (x, y) in places.items():
        width = 0.0105 * len(room) + 0.02
        axes.add_patch(FancyBboxPatch((x - width / 2, y - 0.2), width, 0.4, facecolor="#cfe3f3",
                                      edgecolor="#0072b2", boxstyle="round,pad=0.003", zorder=2))
        axes.text(x, y, room, ha="center", va="center", fontsize=10, zorder=3)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.45, len(floors) - 0.55))
    axes.set_title("The rooms of minipar: an arrow goes to what a room imports (arrows that follow "
                   "from others are left out)", fontsize=10, loc="left")
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
