"""Batches without state: the data, the seed and the number of a step determine its batch.

    global batch of step 3:   sample  18  19 │ 20  21 │ 22 │ 23       6 samples over 4 ranks
                              rank         0 │      1 │  2 │  3       `.shard(rank, 4)`

A run that resumes needs only its step.  Every rank works out the same global batch and keeps its
rows.  So the shards of all ranks, one after the other, are the batch of one process.
"""

import copy
import math
from typing import NamedTuple, Self

import numpy as np

from ..comm.collectives import chunk_bounds
from ..random import generator


def shard_range(total: int, rank: int, num_ranks: int) -> range:
    """The part of 0 … total - 1 that belongs to `rank`, cut as collectives cut arrays.

    Sizes differ by at most 1, the larger ones first; a rank may get none.  Raises ValueError for a
    rank that is not in 0 … num_ranks - 1.
    """
    if not 0 <= rank < num_ranks or total < 0:
        raise ValueError(f"expected a rank in 0 … num_ranks - 1 and a total >= 0, not rank {rank} "
                         f"of {num_ranks} and total {total}")
    return range(*chunk_bounds(total, num_ranks)[rank])


class Batch(NamedTuple):
    """Inputs (b, …), targets (b, …) and the global numbers of the samples (b,), on the host.

    A strategy takes microbatches: `select` cuts out a rank's rows, `split` cuts them into pieces.
    `parallel.strategy.Microbatch` has the same fields, but no methods and perhaps arrays on a GPU.
    """

    inputs: np.ndarray
    targets: np.ndarray
    samples: np.ndarray

    def select(self, rows: range) -> "Batch":
        """The rows start … stop - 1 of this batch, such as `strategy.rows(num_rows)`; views."""
        return Batch(*(array[rows.start:rows.stop] for array in self))

    def split(self, num_microbatches: int) -> list["Batch"]:
        """Microbatches of nearly equal size, the larger ones first; one may have no row.

        They are copies, so each is freed when it is used up.
        """
        if num_microbatches < 1:
            raise ValueError(f"a batch has at least one microbatch, not {num_microbatches}")
        return [Batch(*(array[start:stop].copy() for array in self))
                for start, stop in chunk_bounds(len(self.samples), num_microbatches)]


class _Sharded:
    """Base of batches with all rows of each global batch, or after `shard` with one rank's rows."""

    _shards: tuple[tuple[int, int], ...] = ()

    def shard(self, rank: int, num_ranks: int) -> Self:
        """The same batches with the rows of `rank` by `shard_range`; shards can be sharded again.

        A rank may get 0 rows: arrays of length 0.
        """
        shard_range(0, rank, num_ranks)         # refuse an impossible rank now
        part = copy.copy(self)
        part._shards = (*self._shards, (rank, num_ranks))
        return part

    def _rows(self, size: int) -> np.ndarray:
        rows = np.arange(size)
        for rank, num_ranks in self._shards:
            part = shard_range(len(rows), rank, num_ranks)
            rows = rows[part.start:part.stop]
        return rows


def _check_batch(batch_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"a batch has at least one sample, not batch_size {batch_size}")


def _check_step(step: int) -> None:
    if step < 0:
        raise ValueError(f"steps are counted 0, 1, …, not {step}")


class TextBatches(_Sharded):
    """Windows of `context` tokens from random places of `ids` (n,), to predict each next token.

    `split` is "train", the first `fraction` of the ids, or "validation", the rest.  Raises
    ValueError if this part is shorter than context + 1.
    """

    def __init__(self, ids: np.ndarray, context: int, batch_size: int, seed: int,
                 split: str = "train", fraction: float = 0.9):
        _check_batch(batch_size)
        if split not in ("train", "validation") or not 0 < fraction <= 1 or context < 1:
            raise ValueError("expected split 'train' or 'validation', fraction in (0, 1] and "
                             f"context >= 1, not {split!r}, {fraction} and {context}")
        ids = np.asarray(ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError(f"ids are integers along one axis, not {ids.shape} {ids.dtype}")
        cut = round(len(ids) * fraction)
        self.ids = ids[:cut] if split == "train" else ids[cut:]
        if len(self.ids) < context + 1:
            raise ValueError(f"the {split} part has {len(self.ids)} of {len(ids)} tokens, but "
                             f"context {context} needs at least {context + 1}: give a longer text "
                             "or a smaller context")
        self.context, self.batch_size = context, batch_size
        self.seed, self.split = seed, split

    def batch(self, step: int) -> Batch:
        """Inputs (b, context), targets (b, context) and global sample numbers (b,) of a step."""
        _check_step(step)
        draw = generator(self.seed, "text batches", self.split, step)
        starts = draw.integers(0, len(self.ids) - self.context, self.batch_size)
        rows = self._rows(self.batch_size)
        places = starts[rows, None] + np.arange(self.context)
        return Batch(self.ids[places], self.ids[places + 1], step * self.batch_size + rows)


class Batches(_Sharded):
    """Every sample of x (n, …) and y (n, …) once an epoch, each epoch in an order of its own.

    The last batch of an epoch is smaller if batch_size does not divide n.  Raises ValueError if
    there are no samples or x and y differ in length.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, batch_size: int, seed: int):
        _check_batch(batch_size)
        if len(x) != len(y) or not len(x):
            raise ValueError(f"expected one y for each x, and at least one, not {len(x)} x and "
                             f"{len(y)} y")
        self.x, self.y = np.asarray(x), np.asarray(y)
        self.batch_size, self.seed = batch_size, seed
        self.steps_per_epoch = math.ceil(len(x) / batch_size)
        self._origin = 0, 0

    def continued(self, step: int, sample: int) -> Self:
        """The same batches, but from `step` on: its batch begins with `sample`.

        Samples are counted over all epochs.  So a run that continues with a different batch size
        still sees each sample once an epoch.
        """
        continued = copy.copy(self)
        continued._origin = step, sample
        return continued

    def first_sample(self, step: int) -> int:
        """The number of the first sample of a step's batch, counted over all epochs."""
        _check_step(step)
        origin, sample = self._origin if step >= self._origin[0] else (0, 0)
        num_samples = len(self.x)
        epoch, done = divmod(sample, num_samples)
        left = math.ceil((num_samples - done) / self.batch_size)    # steps in this epoch
        if step - origin < left:
            return sample + (step - origin) * self.batch_size
        others, index = divmod(step - origin - left, self.steps_per_epoch)
        return (epoch + 1 + others) * num_samples + index * self.batch_size

    def batch(self, step: int) -> Batch:
        """x (b, …), y (b, …) and global sample numbers (b,) of a step, counted over all epochs."""
        first = self.first_sample(step)
        epoch, start = divmod(first, len(self.x))
        order = generator(self.seed, "batches", epoch).permutation(len(self.x))
        chosen = order[start:start + self.batch_size]
        rows = self._rows(len(chosen))
        return Batch(self.x[chosen[rows]], self.y[chosen[rows]], first + rows)
