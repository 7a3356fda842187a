"""The composition matrix, offloading: beside every strategy; what saves memory, with each other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np

from minipar.backend import allocating_with
from minipar.backend.mapped_file import MappedFile
from minipar.comm.simulated.copy_stream import copy_streams
from minipar.memory.offload.activations import OffloadActivations
from minipar.train import TrainConfig
from minipar.train.setup.rank_memory import OFFLOADED_KINDS, check_memory
from tests.support.cases import ALL, compare, expected, train, with_remat
from tests.support.cells import Matrix, Proven, Refused
from tests.support.low_precision_runs import train as train_narrow
from tests.support.matrix_memory import REMATS, ROWS, memory_case

COLUMNS = {
    "activations": "what is saved for backward waits in a file",
    "optimizer": "its states wait there",
    "parameters": "shards of parameters and gradients do",
    "activations, full": "and every block is recomputed, from an input that waited there",
}
QUICK = {("fsdp", "parameters"), ("zb_v", "activations, full")}
ONLY_FSDP = "--offload parameters moves the shards of fsdp, unit by unit: add --strategy fsdp"


@contextmanager
def offloading(comm: Any, names: Sequence[str]) -> Iterator[None]:
    """Context in which the arrays that --offload calls `names` wait in a file."""
    file = MappedFile()
    kinds = [kind for name in names for kind in OFFLOADED_KINDS[name]]
    with ExitStack() as stack:
        stack.enter_context(allocating_with(dict.fromkeys(kinds, file.zeros)))
        if "activations" in names:
            offload = OffloadActivations(file.empty, (), *copy_streams(comm), min_bytes=1)
            stack.enter_context(offload.recording())
        yield
    assert "activations" not in names or offload.num_out > 0
    assert file.size > 0


def check_offload(world: Any, name: str, column: str) -> None:
    """With and without a file a run is the same to the last bit, and that of one process."""
    offload, _, remat = column.partition(", ")
    case = memory_case(name)
    alone = expected(case)

    def body(comm: Any) -> None:
        plain = train(comm, name, case)
        with offloading(comm, [offload]):
            moved = train(comm, name, case._replace(remat=remat or "none"))
        same(plain, moved)
        compare(comm, name, moved, alone)
    world.run(body)


def same(plain: dict[str, Any], other: dict[str, Any]) -> None:
    """Assert that both runs found the same to the last bit."""
    assert plain.keys() == other.keys()
    for key, value in plain.items():
        np.testing.assert_array_equal(other[key], value, err_msg=key)


def check_refused(world: Any, strategy: str) -> None:
    """Ask for --offload parameters with this strategy, as the command line checks it."""
    check_memory(TrainConfig().updated(offload="parameters", strategy=strategy))


def cells() -> Iterator[tuple[tuple[str, str], Proven | Refused]]:
    """Every strategy with everything that can wait elsewhere."""
    for name in ROWS:
        for column in COLUMNS:
            slow = (name, column) not in QUICK
            if column == "parameters" and "fsdp" not in name:
                yield (name, column), Refused(partial(check_refused, strategy="ddp"), ONLY_FSDP,
                                              name != "ddp")
            else:
                yield (name, column), Proven(partial(check_offload, name=name, column=column), slow)


PRECISIONS = ("bf16", "fp16", "fp8")
EACH_ROWS = {**{f"remat {name}": text for name, text in REMATS.items()},
             **{f"offload {name}": COLUMNS[name] for name in OFFLOADED_KINDS}}
EACH_COLUMNS = {**{f"offload {name}": COLUMNS[name] for name in OFFLOADED_KINDS},
                **dict.fromkeys(PRECISIONS, "--precision")}
QUICK_PAIRS = {("offload activations", "fp8")}


def check_pair(world: Any, row: str, column: str) -> None:
    """FSDP with both methods gives, to the last bit, what it gives with neither.

    A precision in the column stays in both runs.
    """
    told = dict(reversed(name.split()) for name in (row, column) if " " in name)
    names = [name for name, what in told.items() if what == "offload"]
    remats = [name for name, what in told.items() if what == "remat"] or ["none"]
    remat = "optimal:40KB" if remats[0] == "optimal" else remats[0]

    def body(comm: Any) -> None:
        run = _runs(comm, column)
        plain = run("none")
        with offloading(comm, names) if names else ExitStack():
            both = run(remat)
        same(plain, both)
    world.run(body)


def _runs(comm: Any, column: str) -> Callable[[str], dict]:
    if column not in PRECISIONS:
        return lambda remat: train(comm, "fsdp", memory_case("fsdp")._replace(remat=remat))
    return lambda remat: train_narrow(comm, "gpt", column, lambda model, comm: ALL["fsdp"](
        with_remat(model, remat, "fsdp", comm), comm))


def pairs() -> Iterator[tuple[tuple[str, str], Proven | Refused]]:
    """Pairs of methods that save memory."""
    for row in EACH_ROWS:
        for column in EACH_COLUMNS:
            if row != column:
                yield (row, column), Proven(partial(check_pair, row=row, column=column),
                                            (row, column) not in QUICK_PAIRS)


OFFLOAD = [Matrix("Offloading", ROWS, COLUMNS, dict(cells())),
           Matrix("What saves memory, with each other (and FSDP)", EACH_ROWS, EACH_COLUMNS,
                  dict(pairs()))]
