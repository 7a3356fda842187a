"""A small GPT, plain and on any mesh, for the tests of comparisons."""

import numpy as np

from minipar.comm.mesh import DeviceMesh
from minipar.data.batches import TextBatches
from minipar.nn import GPT, GPTConfig
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Strategy
from minipar.testing import find_difference

CONFIG = GPTConfig(vocab_size=29, context=12, num_layers=2, num_heads=2, width=16, dropout=0.1)
BATCHES = TextBatches(np.random.default_rng(0).integers(0, 29, 400), 12, 6, seed=1)


def plain(comm, dtype):
    """One process."""
    return Strategy(GPT(CONFIG).initialize(0, dtype), comm)


def on_mesh(mesh, kind=DistributedDataParallel, **options):
    """A program with a strategy on a mesh, and its number of ranks."""
    def program(comm, dtype):
        return kind(GPT(CONFIG).initialize(0, dtype), DeviceMesh(comm, **mesh), **options)
    return program, int(np.prod(list(mesh.values())))


def compared(mesh, kind=DistributedDataParallel, microbatches=1, dtype="float64", steps=1,
             **options):
    """The difference of a strategy on a mesh from one process."""
    right, num_ranks = on_mesh(mesh, kind, **options)
    return find_difference(plain, right, BATCHES, ranks=(1, num_ranks), steps=steps, dtype=dtype,
                           microbatches=(1, microbatches))
