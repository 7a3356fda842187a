"""A page that steps through the rounds of collectives, their chunks moving: one file, no network.

    write_rounds_page("out/ring.html", record_rounds("all_gather", "ring", 4), title="A ring")

Open it in a browser: buttons, a slider, arrow keys; `ring.html#algorithm=0&round=2` opens it after
round 2 of the first film.  What the page shows is `page_data`, plain values from real runs
(rounds.py), embedded as JSON; the script in rounds.html draws them and knows no algorithm.
"""

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

from ..atomic_files import write_text
from ..comm import collectives
from ..comm.collectives.registry import ALGORITHMS
from ..units import in_bytes
from .rounds import Held, Move, Rounds
from .rounds_picture import COLORS, color_of, is_summed, name_of, title_of

TEMPLATE = Path(__file__).with_name("rounds.html")


def write_rounds_page(path: str | Path, *films: Rounds, title: str) -> Path:
    """Write the page that shows the films, by choice; return its path.

    Raises ValueError without any film.
    """
    if not films:
        raise ValueError("a page shows at least one film: give it record_rounds(…)")
    data = json.dumps([page_data(film) for film in films], ensure_ascii=False)
    for sign in "<>&":                  # so that nothing in it can end the script element
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    colors = " ".join(f"--c{i}: {color};" for i, color in enumerate(COLORS))
    inserted = {"TITLE": html.escape(title), "COLORS": colors, "DATA": data}
    page = TEMPLATE.read_text(encoding="utf-8")
    return write_text(path, re.sub("%([A-Z]+)%", lambda mark: inserted[mark[1]], page))


def page_data(film: Rounds) -> dict[str, Any]:
    """All that the page shows of a film, as values of JSON; chunks and ranks are numbers."""
    chunks = range(film.grid[0] * film.grid[1])
    whole = [sorted(film.whole[chunk]) for chunk in chunks]
    rounds, so_far = len(film.moves), 0
    steps = []
    for k, held in enumerate(film.held):
        moves = film.moves[k - 1] if k else []
        so_far += len(moves)
        steps.append({
            "caption": caption(film, k),
            "moves": [{"source": move.source, "dest": move.dest, "chunks": sorted(move.chunks),
                       "text": sentence(film, move)} for move in moves],
            "held": [as_lists(mine) for mine in held],
            "counted": [str(k), str(so_far), in_bytes(film.path[k])]})
    model = film.predicted
    return {
        "title": title_of(film), "about": [about_operation(film), about_algorithm(film)],
        "ranks": film.num_ranks, "grid": list(film.grid), "summed": is_summed(film),
        "names": [name_of(film, chunk) for chunk in chunks], "whole": whole,
        "colors": [[color_of(film, chunk, rank) for rank in ranks]
                   for chunk, ranks in zip(chunks, whole)],
        "chunk": in_bytes(film.chunk_bytes), "rounds": rounds, "steps": steps,
        "results": [sorted(result) for result in film.results],
        "model": [str(model.rounds), str(model.messages), in_bytes(model.num_bytes)]}


def as_lists(held: Held) -> dict[str, list[int]]:
    """JSON has no sets, and its keys are strings."""
    return {str(chunk): sorted(ranks) for chunk, ranks in sorted(held.items())}


def caption(film: Rounds, k: int) -> str:
    """What happened in round k; of 0, that nothing has happened yet."""
    if k == 0:
        return "Before the first round: what each rank gives."
    moves = film.moves[k - 1]
    sizes = sorted({move.num_bytes for move in moves})
    size = " to ".join(in_bytes(size) for size in [sizes[0], *sizes[1:][-1:]])
    count = "1 message" if len(moves) == 1 else f"{len(moves)} messages at once"
    return f"Round {k} of {len(film.moves)}: {count}, {size}{' each' * (len(moves) > 1)}."


def sentence(film: Rounds, move: Move) -> str:
    """Who sends what to whom."""
    names = [name_of(film, chunk) for chunk in sorted(move.chunks)]
    what = f": {' '.join(names)} ({in_bytes(move.num_bytes)})" if names else ": a signal (0 B)"
    return f"{move.source} → {move.dest}{what}"


def about_operation(film: Rounds) -> str:
    """What the operation does: the first line of its module."""
    return first_line(sys.modules[getattr(collectives, film.operation).__module__])


def about_algorithm(film: Rounds) -> str:
    """How the algorithm does it: the first line of its function."""
    return first_line(ALGORITHMS[film.operation][film.algorithm])


def first_line(documented: Any) -> str:
    """Of its docstring (which python -OO leaves out)."""
    return (documented.__doc__ or "").strip().partition("\n")[0]
