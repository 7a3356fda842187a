"""The composition matrix, memory: what is recomputed, beside every strategy."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from tests.support.cases import HYBRIDS, PIPELINES, STRATEGIES, Case, compare, expected, train
from tests.support.cells import Matrix, Proven, Refused

# a variant; refused in any case; with a number of tokens of its own
OTHERS = ("fsdp no prefetch", "pp 2 × dp 2 sequence", "pp 2 × cp 2 sequence",
          "dp 2 × cp 2 sequence", "cp 2 × tp 2 sequence")
ROWS = {name: "" for name in [*STRATEGIES, *PIPELINES, *HYBRIDS] if name not in OTHERS}
REMATS = {
    "selective": "attention's probabilities are recomputed",
    "full": "every block is",
    "nested": "segments inside segments are, to the last part",
    "optimal": "by the best plan within so many bytes, the same on all ranks that have to agree",
}
# From each family the strategy with most to get wrong; the others are marked slow.
QUICK = {"fsdp", "zb_v", "dp 2 × tp 2 sequence"}
CASE = Case("gpt dropout", "adamw", parts=(4, 3, 3), max_norm=0.1)


def memory_case(name: str) -> Case:
    """Tied weights, dropout, uneven microbatches, clipping: everything at once."""
    return CASE._replace(model="gpt deep tied") if name in PIPELINES else CASE


def check_remat(world: Any, name: str, case: Case) -> None:
    """A rematerialized run equals the plain one to the last bit, and one process to 1e-10."""
    plain_case = case._replace(remat="none")
    alone = expected(plain_case)

    def body(comm: Any) -> None:
        plain, again = train(comm, name, plain_case), train(comm, name, case)
        for key, value in plain.items():
            np.testing.assert_array_equal(again[key], value, err_msg=key)
        compare(comm, name, again, alone)
    world.run(body)


def remat_cells() -> Iterator[tuple[tuple[str, str], Proven | Refused]]:
    """Every strategy with every kind of plan."""
    for name in ROWS:
        for remat in REMATS:
            policy = "optimal:40KB" if remat == "optimal" else remat
            case = memory_case(name)._replace(remat=policy)
            yield (name, remat), Proven(partial(check_remat, name=name, case=case),
                                        remat != "nested" or name not in QUICK)


MEMORY = [Matrix("Rematerialization", ROWS, REMATS, dict(remat_cells()))]
