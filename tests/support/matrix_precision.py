"""The composition matrix, mixed precision: beside every strategy, and with rematerialization."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from tests.parallel.test_low_precision import roundings
from tests.support.cases import ALL, HYBRIDS, PIPELINES, with_remat
from tests.support.cells import Matrix, Proven, Refused
from tests.support.low_precision_runs import UNIT, alone, train
from tests.support.matrix_memory import ROWS

PARTS = 4           # microbatches: as many as ranks, which may have one each
COLUMNS = {
    "bf16": "what one process computes in this precision; beside tp, but for the rounding of sums",
    "fp16": "the same, with a scaled loss",
    "fp8": "the same, factors of products in 8 bits (beside tp only as far as bf16 shows it)",
    "bf16, nested": "and segments inside segments recomputed: the same to the last bit",
    "fp16, full": "and every block recomputed: the same to the last bit",
    "fp8, selective": "and attention recomputed: the same to the last bit",
}
QUICK = {("fsdp", "fp8, selective"), ("zb_h1", "fp16, full")}


def run(comm: Any, name: str, precision: str, remat: str = "none") -> dict[str, np.ndarray]:
    """Train for two steps by the strategy `name`; what `low_precision_runs.train` returns."""
    return train(comm, model_of(name), precision, lambda model, comm: ALL[name](
        with_remat(model, remat, name, comm), comm), PARTS if splits(name) else 1)


def model_of(name: str) -> str:
    """The model of the strategy's runs: beside pipelines one for four ranks with two stages each.
    """
    return "deep" if name in PIPELINES else "gpt"


def splits(name: str) -> bool:
    """True if ranks have the same rows, cut into microbatches, and not each its own."""
    return name in PIPELINES or name in HYBRIDS


def splits_layers(name: str) -> bool:
    """True if several ranks compute one layer of one sample, which rounds differently."""
    return "tp" in name or "cp" in name


def check_again(world: Any, name: str, precision: str, remat: str) -> None:
    """With and without rematerialization a run is the same to the last bit on every rank."""
    def body(comm: Any) -> None:
        plain, again = run(comm, name, precision), run(comm, name, precision, remat)
        assert plain.keys() == again.keys()
        for key, value in plain.items():
            np.testing.assert_array_equal(again[key], value, err_msg=key)
    world.run(body)


def check_one_process(world: Any, name: str, precision: str) -> None:
    """Gradients of the first step are those of one process, summed in a different order.

    The one process takes as many microbatches as all ranks together: then gradients are rounded
    alike.  Beside tp rounded sums are rounded once more, and beside cp probabilities are not
    rounded.  So they may differ by 4 √n u, where n is the number of roundings on the way.
    """
    expected = alone(model_of(name), precision, parts=PARTS * (2 if "dp 2" in name else 1))
    bound = 4 * roundings("gpt", precision)**0.5 * UNIT[precision] if splits_layers(name) \
        else 2.0**-20

    def body(comm: Any) -> None:
        for key, value in run(comm, name, precision).items():
            if name == "dp" and comm.rank:      # only rank 0 has gradients
                continue
            if key.startswith("gradient 0"):
                distance = np.linalg.norm(value - expected[key]) / np.linalg.norm(expected[key])
                assert distance < bound, key
    world.run(body)


def cells() -> Iterator[tuple[tuple[str, str], Proven | Refused]]:
    """Every strategy in every precision; with fp8 beside tp nothing is left to compare with."""
    for name in ROWS:
        for column in COLUMNS:
            precision, _, remat = column.partition(", ")
            slow = (name, column) not in QUICK
            if remat:
                yield (name, column), Proven(partial(check_again, name=name, precision=precision,
                                                     remat=remat), slow)
            elif precision in UNIT or not splits_layers(name):
                yield (name, column), Proven(partial(check_one_process, name=name,
                                                     precision=precision), slow)


PRECISION = [Matrix("Mixed precision", ROWS, COLUMNS, dict(cells()))]
