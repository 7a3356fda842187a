"""A page that steps through the rounds of collectives, their chunks moving: one file, no network.

    write_rounds_page("out/ring.html", record_rounds("all_gather", "ring", 4), title="A ring")

Open it in a browser, and step with its buttons, its slider or the arrow keys.
`ring.html#algorithm=0&round=2` opens it after round 2 of the first run.  The page embeds
`page_data` as JSON: plain values from real runs (rounds.py).  The script in rounds.html draws them
and knows no algorithm.
"""

import sys
from pathlib import Path
from typing import Any

from ...comm import collectives
from ...comm.algorithms import ALGORITHMS
from ...units import in_bytes
from ..grids.rounds import Move, Rounds
from ..grids.rounds_picture import COLORS, color_of, is_summed, name_of, title_of
from .page import write_page

PAGE = Path(__file__).with_name("rounds.html")


def write_rounds_page(path: str | Path, *runs: Rounds, title: str) -> Path:
    """Write the page that shows the runs, by choice; return its path.

    Raises ValueError without any run.
    """
    if not runs:
        raise ValueError("a page shows at least one run: give it record_rounds(…)")
    return write_page(path, PAGE, title, [page_data(run) for run in runs],
                      {f"c{i}": color for i, color in enumerate(COLORS)})


def page_data(run: Rounds) -> dict[str, Any]:
    """All that the page shows of a run, as values of JSON; chunks and ranks are numbers."""
    chunks = range(run.grid[0] * run.grid[1])
    whole = [sorted(run.whole[chunk]) for chunk in chunks]
    rounds, so_far = len(run.moves), 0
    steps = []
    for k, held in enumerate(run.held):
        moves = run.moves[k - 1] if k else []
        so_far += len(moves)
        steps.append({
            "caption": caption(run, k),
            "moves": [{"source": move.source, "dest": move.dest, "chunks": sorted(move.chunks),
                       "text": sentence(run, move)} for move in moves],
            "held": [{str(chunk): sorted(ranks) for chunk, ranks in sorted(mine.items())}
                     for mine in held],
            "counted": [str(k), str(so_far), in_bytes(run.path[k])]})
    model = run.predicted
    return {
        "title": title_of(run), "about": about(run),
        "ranks": run.num_ranks, "grid": list(run.grid), "summed": is_summed(run),
        "names": [name_of(run, chunk) for chunk in chunks], "whole": whole,
        "colors": [[color_of(run, chunk, rank) for rank in ranks]
                   for chunk, ranks in zip(chunks, whole)],
        "chunk": in_bytes(run.chunk_bytes), "rounds": rounds, "steps": steps,
        "results": [sorted(result) for result in run.results],
        "model": [str(model.rounds), str(model.messages), in_bytes(model.num_bytes)] if model
        else ["not predicted"] * 3}


def caption(run: Rounds, k: int) -> str:
    """The sentence that the page shows for round k; round 0 is the start."""
    if k == 0:
        return "Before the first round: what each rank gives."
    moves = run.moves[k - 1]
    sizes = sorted({move.num_bytes for move in moves})
    size = " to ".join(in_bytes(size) for size in [sizes[0], *sizes[1:][-1:]])
    count = "1 message" if len(moves) == 1 else f"{len(moves)} messages at once"
    return f"Round {k} of {len(run.moves)}: {count}, {size}{' each' * (len(moves) > 1)}."


def sentence(run: Rounds, move: Move) -> str:
    """The sentence on one message: ranks, chunks, bytes."""
    names = [name_of(run, chunk) for chunk in sorted(move.chunks)]
    what = f": {' '.join(names)} ({in_bytes(move.num_bytes)})" if names else ": a signal (0 B)"
    return f"{move.source} → {move.dest}{what}"


def about(run: Rounds) -> list[str]:
    """What the operation and the algorithm do: the first lines of its module and its function."""
    module = sys.modules[getattr(collectives, run.operation).__module__]
    return [(documented.__doc__ or "").strip().partition("\n")[0]         # python -OO leaves it out
            for documented in (module, ALGORITHMS[run.operation][run.algorithm].run)]
