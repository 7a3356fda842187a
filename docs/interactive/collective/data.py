"""Collective player: the messages of each round of some collectives, recorded as they ran."""

from typing import Any

from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.collectives.operations import own_options
from minipar.viz.grids.rounds import Rounds, record_rounds

OPERATIONS = ("broadcast", "all_gather", "reduce_scatter", "all_reduce", "reduce", "gather",
              "scatter")
RANKS = (3, 4, 6, 8)
CHUNK = 1000                # bytes


def as_json(rounds: Rounds) -> dict[str, Any]:
    """A recording: moves[round] are [source, dest, chunks], held[round][rank] contributions."""
    chunks = range(rounds.grid[1])
    return {
        "moves": [[[move.source, move.dest, sorted(move.chunks)] for move in moves]
                  for moves in rounds.moves],
        "held": [[[len(held.get(chunk, ())) for chunk in chunks] for held in ranks]
                 for ranks in rounds.held],
        "whole": [len(rounds.whole[chunk]) for chunk in chunks],
        "path": rounds.path,
        "predicted": rounds.predicted and [rounds.predicted.rounds, rounds.predicted.num_bytes,
                                           rounds.predicted.messages]}


def data() -> dict[str, Any]:
    """{"ranks", "chunk", "runs": {operation: {algorithm: {p: recording}}}}."""
    runs: dict[str, dict[str, dict[int, Any]]] = {}
    for operation in OPERATIONS:
        for algorithm in ALGORITHMS[operation]:
            if own_options(operation, algorithm):       # it needs nodes, or other chunks
                continue
            for p in RANKS:
                found = as_json(record_rounds(operation, algorithm, p, chunk_bytes=CHUNK))
                runs.setdefault(operation, {}).setdefault(algorithm, {})[p] = found
    return {"ranks": list(RANKS), "chunk": CHUNK, "runs": runs}
