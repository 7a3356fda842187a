"""The peers of the small models compute the same, on one rank and on two."""

import numpy as np

from minipar.testing import worlds
from tests.bench import small_models
from tests.bench.on_ranks import deep_mlp


def test_operations_and_the_mlp_are_measured():
    rows = [*small_models.operation_rows(2), small_models.mlp_row(1)]
    assert [row.ratio > 0 for row in rows] == [True] * 3


@worlds(mpi=(2,))
def test_numpy_over_two_ranks_trains_as_minipar_does(world):
    def body(comm):
        for steps in deep_mlp.pairs(comm).values():
            for _ in range(3):
                losses = [step() for step in steps.values()]
                assert np.isclose(*losses, rtol=1e-5)
    world.run(body)
