"""Batches that go on with another size: each sample once an epoch all the same."""

import numpy as np
import pytest

from minipar.data import Batches


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2), (4, 4), (1, 99), (7, 3, 2), (99, 1)])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_another_batch_size_within_an_epoch(sizes, steps):
    """Each sample once an epoch, in the order of the epoch, whatever the sizes of batches."""
    y = np.arange(10)
    alone = Batches(y * 2.0, y, 1, seed=4)
    batches, step, seen, numbers = Batches(y * 2.0, y, sizes[0], seed=4), 0, [], []
    for i, size in enumerate(sizes):
        if i:
            sample = batches.first_sample(step)
            batches = Batches(y * 2.0, y, size, seed=4).continued(step, sample)
            assert batches.first_sample(step) == sample
        while len(seen) < 40 if i == len(sizes) - 1 else step < steps * (i + 1):
            _, ys, samples = batches.batch(step)
            assert len(ys) and len(ys) <= size
            seen, numbers, step = [*seen, *ys.tolist()], [*numbers, *samples.tolist()], step + 1
    assert numbers == list(range(len(numbers)))
    assert seen == [alone.batch(i)[1][0] for i in range(len(seen))]


def test_the_same_batch_size_goes_on_as_if_nothing_had_happened():
    y = np.arange(10)
    whole = Batches(y * 2.0, y, 3, seed=4)
    for origin in range(9):
        part = whole.continued(origin, whole.first_sample(origin))
        for step in range(13):
            assert all(map(np.array_equal, part.batch(step), whole.batch(step)))
