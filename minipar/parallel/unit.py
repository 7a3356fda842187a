"""A unit of FSDP: a flat run of parameters, padded to a multiple of p, a shard of it on each rank.

    released   ▁▁▁ padded: this rank's shard          parameters are shapes without numbers
    gathered   ███████████ full: everyone's shards    parameters are views of it
"""

from collections.abc import Callable, Sequence

import numpy as np

from ..backend import Array, allocated
from ..comm import Communicator
from ..comm.collectives import all_gather
from ..comm.work import Work, start
from ..nn import Parameter
from ..nn.parameter import Absent
from ..nn.slab import Segment
from .sharded import PassingGradient
from .shards import Shard


class Unit:
    """Named parameters that are gathered and released together over `comm`.

    `stays`: not released between forward and backward.
    """

    def __init__(self, named: Sequence[tuple[str, Parameter]], comm: Communicator, stays: bool):
        self.parameters, self.stays, self.pinned = [p for _, p in named], stays, False
        self.slots = {p.slot for p in self.parameters}
        self.layout, size = [], 0
        for name, p in named:
            box = tuple((0, n) for n in p.shape)
            self.layout.append(Segment(name, size, size + p.size, box, p.shape))
            size += p.size
        length = -(-size // comm.size)                      # of a shard, with its padding
        bounds = [(min(r * length, size), min((r + 1) * length, size)) for r in range(comm.size)]
        begin, end = bounds[comm.rank]
        flat = np.concatenate([p.data.reshape(p.size) for p in self.parameters])
        self.padded = allocated("parameters", np.zeros_like(flat, shape=length))
        self.padded[:end - begin] = flat[begin:end]
        grad = allocated("gradients", np.zeros_like(self.padded))
        self.shard = Shard(self.parameters, self.layout, comm, bounds, self.padded[:end - begin],
                           grad[:end - begin])
        self.gradient = PassingGradient(self.parameters, self.layout, self.padded)
        self.released = [Absent(p.shape, p.dtype) for p in self.parameters]
        self.full: Array | None = None          # all parameters and the padding, while gathered
        self.coming: Work | None = None         # … or while they are on their way
        self.on_use: Callable[[Unit], None] = lambda unit: None     # the strategy's
        self.release()

    def call(self, parameter: Parameter) -> Parameter:
        """A transform of parameters: whoever uses one of the unit finds all of them here."""
        if parameter.slot in self.slots:
            self.on_use(self)
        return parameter

    def start_gather(self, comm: Communicator) -> None:
        """Begin to gather, unless that is done."""
        if self.full is None:
            self.full = allocated("communication", np.empty_like(
                self.padded, shape=len(self.padded) * comm.size))
            self.coming = start(all_gather, comm, self.padded, out=self.full)

    def gather(self, comm: Communicator) -> None:
        """Have all parameters here."""
        self.start_gather(comm)
        if self.coming is not None:
            self.coming.wait()
            self.coming = None
            for p, s in zip(self.parameters, self.layout):
                p.data = self.full[s.start:s.stop].reshape(s.shape)

    def release(self) -> None:
        """Forget them: what is left of a parameter is its shape."""
        if self.coming is not None:
            self.coming.wait()
        self.full = self.coming = None
        for p, shape in zip(self.parameters, self.released):
            p.data = shape
