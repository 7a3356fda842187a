"""The composition matrix, experts: on every mesh, with what goes beside them."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from minipar.parallel.registry import make_strategy
from tests.support.cases import ONE_PROCESS
from tests.support.cells import Matrix, Proven, Refused
from tests.support.expert_runs import check, on

LABELS = {"ddp": "every rank has all experts", "dp": "the classic DataParallel"}
ROWS = {
    **{name: LABELS.get(name, "") for name in ONE_PROCESS},
    "ep 4": "the experts cut over all four ranks of dp",
    "dp 4, ep 2": "cut over two neighbours; each expert is on two ranks",
    "pp 2 × ep 2": "a 1F1B pipeline whose stages share their experts",
    "tp 2 × ep 2": "attention and each expert also tensor-parallel",
}
MESHES = {"ep 4": {"ep": 4}, "dp 4, ep 2": {"dp": 4, "ep": 2}, "pp 2 × ep 2": {"pp": 2, "ep": 2},
          "tp 2 × ep 2": {"tp": 2, "ep": 2}}
COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {
    "accumulation": ("three microbatches are the one big batch", {"parts": 3}),
    "dropped": ("a capacity, with one target in the whole batch",
                {"model": "dropped", "mask": "one target"}),
    "dropout": ("the masks of one process", {"model": "dropout"}),
    "biases": ("balanced by biases; shared experts; AdamW",
               {"model": "deepseek", "optimizer": "adamw"}),
    "balance over ranks": ("the balance loss of a microbatch over all ranks", {"model": "batch"}),
    "llama": ("SwiGLU, RMS norm, grouped queries, no biases", {"model": "llama"}),
    "remat": ("every block is recomputed", {"model": "deepseek", "remat": "full"}),
    "nested remat": ("segments inside segments are", {"model": "batch", "remat": "nested"}),
}
ON_MESHES = {
    "ZeRO-1": ("optimizer states sharded over the ranks with the same parameters",
               {"model": "deepseek", "optimizer": "adamw", "parts": 3}, {"name": "zero1"}),
    "FSDP": ("parameters and gradients too",
             {"model": "deepseek", "optimizer": "adamw", "parts": 3}, {"name": "fsdp"}),
    "FSDP, remat": ("and every block recomputed", {"model": "dropped", "remat": "full"},
                    {"name": "fsdp"}),
    "sequence parallelism": ("tokens split over tp between the layers", {"model": "deepseek"},
                             {"sequence_parallel": True}),
}


def cells() -> Iterator[tuple[tuple[str, str], Proven | Refused]]:
    """Every strategy and mesh with every feature."""
    for row in ROWS:
        make = on(MESHES[row]) if row in MESHES else partial(by_name, row)
        for column, (_, options) in COLUMNS.items():
            yield (row, column), Proven(partial(check, make=make, name=row, **options))
        for column, (_, options, of_strategy) in ON_MESHES.items():
            if row in MESHES:
                run = partial(check, make=on(MESHES[row], **of_strategy), **options)
                refused = column.startswith("sequence") and "tp" not in row
                yield (row, column), Refused(
                    run, "splits tokens over the ranks of tp, and here tp has only one") \
                    if refused else Proven(run)


def by_name(name: str, model: Any, comm: Any) -> Any:
    """A strategy without a mesh."""
    return make_strategy(name, model, comm)


EXPERTS = [Matrix("Experts", ROWS, {name: about[0] for name, about in
                                    (COLUMNS | ON_MESHES).items()}, dict(cells()))]
