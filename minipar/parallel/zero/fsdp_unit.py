"""A unit of FSDP: parameters that are gathered and released together, in one flat run or several.

    released   ▁▁▁ piece: this rank's part of a run   parameters are shapes without numbers
    gathered   ███████████ full: everyone's pieces    parameters are views of it

Made inside `backend.allocating_with`, pieces and their gradients are elsewhere: in a file, or on
the host beside a GPU.  What is gathered is where the parameters were.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ...backend import Array, allocate_zeros, record_allocation, to_device_of
from ...backend.mapped_file import page_out
from ...backend.views import view_from_spec, view_spec
from ...comm import Communicator
from ...comm.work import Work, start
from ...nn import Parameter
from ...nn.parameter import Unmaterialized
from ...nn.slab import Segment
from ..shards import Shard
from ..wire import UNCOMPRESSED, Wire
from .zero2 import TransientGradient


class FlatRun:
    """Parameters in one flat run, of which `shard` is here.

    `piece`, the shard's data and perhaps padding after it, is this rank's of all pieces, of these
    `lengths`, that are gathered, to where `like` is.
    """

    def __init__(self, shard: Shard, piece: Array, lengths: Sequence[int], like: Array):
        self.shard, self.piece, self.lengths = shard, piece, list(lengths)
        self.like = np.empty_like(like, shape=0)
        self.gradient = TransientGradient(shard.parameters, shard.layout, self.like)
        page_out(piece, shard.grad)


def padded_run(named: Sequence[tuple[str, Parameter]], comm: Communicator) -> FlatRun:
    """These parameters as a run, padded to a multiple of p and cut into p equal pieces."""
    layout, size = [], 0
    for name, p in named:
        box = tuple((0, n) for n in p.shape)
        layout.append(Segment(name, size, size + p.size, box, p.shape))
        size += p.size
    length = -(-size // comm.size)                      # of a piece, with its padding
    bounds = [(min(r * length, size), min((r + 1) * length, size)) for r in range(comm.size)]
    begin, end = bounds[comm.rank]
    flat = np.concatenate([p.data.reshape(p.size) for _, p in named])
    padded = allocate_zeros("parameters", flat, length)
    padded[:end - begin] = flat[begin:end]
    grad = allocate_zeros("gradients", padded)
    shard = Shard([p for _, p in named], layout, comm, bounds, padded[:end - begin],
                  grad[:end - begin])
    return FlatRun(shard, padded, [length] * comm.size, flat)


class FSDPUnit:
    """Runs of parameters that are gathered and released together.

    `stays`: not released between forward and backward.
    """

    def __init__(self, runs: Sequence[FlatRun], stays: bool = False):
        self.runs, self.stays, self.pinned = list(runs), stays, False
        self.places = [(p, s) for run in runs for p, s in zip(run.shard.parameters,
                                                              run.shard.layout)]
        self.parameters, self.names = [p for p, _ in self.places], [s.name for _, s in self.places]
        self.slots = {p.slot for p in self.parameters}
        self.released = [Unmaterialized(p.shape, p.dtype) for p in self.parameters]
        self.full: list[Array] | None = None    # all of each run and its padding, while gathered
        self.coming: Work | None = None         # … or while they are on their way
        self.wire: Wire = UNCOMPRESSED          # how pieces travel
        self.on_use: Callable[[FSDPUnit], None] = lambda unit: None     # set by who gathers
        self.release()

    def call(self, parameter: Parameter) -> Parameter:
        """A transform of parameters: whoever uses one of the unit finds all of them here."""
        if parameter.slot in self.slots:
            self.on_use(self)
        return parameter

    def start_gather(self, comm: Communicator) -> None:
        """Begin to gather, unless that is done."""
        if self.full is None:
            arrays = [np.empty_like(run.like, shape=sum(run.lengths)) for run in self.runs]
            self.full = [record_allocation("communication", array) for array in arrays]
            self.coming = start(_gather_all, comm, self.wire, self.runs, self.full)

    def gather(self, comm: Communicator) -> None:
        """Have all parameters here."""
        self.start_gather(comm)
        if self.coming is not None:
            self.coming.wait()
            self.coming = None
            whole = [full for run, full in zip(self.runs, self.full) for _ in run.shard.layout]
            for (p, s), full in zip(self.places, whole):
                p.data = full[s.start:s.stop].reshape(s.shape)

    def release(self) -> None:
        """Forget them: what is left of a parameter is its shape."""
        if self.coming is not None:
            self.coming.wait()
        self.full = self.coming = None
        for p, shape in zip(self.parameters, self.released):
            p.data = shape

    def find(self, array: Array) -> tuple | None:
        """Where in the gathered parameters `array` is; None if it is no view of them."""
        for i, full in enumerate(self.full or ()):
            place = view_spec(array, full)
            if place is not None:
                return i, place
        return None

    def view(self, found: tuple) -> Array:
        """What `find` found, now that the parameters are here again."""
        i, place = found
        return view_from_spec(self.full[i], place)


def _gather_all(comm: Communicator, wire: Wire, runs: Sequence[FlatRun],
                out: Sequence[Array]) -> None:
    for run, whole in zip(runs, out):
        wire.all_gather(comm, to_device_of(run.piece, run.like), run.lengths, whole)
        page_out(run.piece)


def call_before_use(modules: Sequence, unit: FSDPUnit) -> None:
    """Whoever uses a parameter of the unit through one of `modules` calls for the unit first."""
    for module in modules:
        if any(p.slot in unit.slots for p in module._parameters.values()):
            module._transforms.insert(0, unit.call)
