"""ZeRO-3, and the idea of FSDP, as a graph: every use of a weight is `all_gather(shard)`.

    forward     shard ── all_gather ──────▶ w ─▶ linear          w is freed after its use
    backward    shard ── all_gather ──────▶ w ─▶ dx              and gathered again for dx
                d shard ◀── reduce_scatter ── dw                 this rank's piece of the sum

The backward of an all-gather is a reduce-scatter, so each rank gets its piece of the summed
gradient.  For backward, linear saves a note in place of w, and the note gathers w again.

A rank keeps 1/p of the parameters, of the gradients and of the optimizer states.  Each use of a
weight of n elements sends n(p-1)/p three times: to gather it, to gather it again for dx, and to
reduce-scatter its gradient.  That makes 3Ψ(p-1)/p in a step.  `fsdp.py` gathers many weights at
once, ahead of their use.  Rajbhandari et al. 2020, section 5.3.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...autograd import GradientSlot, Tensor, saved_tensors_hooks
from ...backend import Array, allocate_zeros, record_allocation
from ...backend.views import ViewSpec, storage, view_from_spec, view_spec
from ...comm import Communicator
from ...comm.collectives import all_gather as gather_array
from ...comm.collectives import broadcast
from ...nn import Module
from ...nn.parameter import Unmaterialized
from ...nn.slab import Buffers
from ..compare_ranks import check_uses
from ..conjugate import all_gather
from ..flats import Flat, Piece, Pieces


class ShardedParameters:
    """Cuts every parameter of `model` into one piece a rank; `slabs` are this rank's pieces.

    The model keeps only the shapes of its parameters; each use gathers the weight from all ranks.
    All ranks start from rank 0's values.
    """

    def __init__(self, model: Module, comm: Communicator):
        self.comm = comm
        self._leaves: dict[GradientSlot, tuple[str, Tensor]] = {}
        self._uses: list[str] = []
        self._gathered: dict[int, Tensor] = {}          # by the id of the gathered array
        flats = [Flat(slab, [i], comm, comm) for slab in model.slabs
                 for i in range(len(slab.segments))]
        self.slabs = Pieces(model.slabs, [self._shard(flat) for flat in flats])
        for slab in model.slabs:
            slab.drop()
        model.slabs = Buffers()
        for parameter in model.parameters():
            parameter.on_use(self.gather, first=True)

    def _shard(self, flat: Flat) -> Piece:
        """This rank's piece of a parameter, a leaf of the graph; the parameter loses its values."""
        (parameter,), (segment,) = flat.parameters, flat.segments
        broadcast(self.comm, parameter.data, out=parameter.data)
        data = record_allocation("parameters", flat.mine(flat.slab.data).copy())
        leaf, grad = Tensor(data), allocate_zeros("gradients", data)
        piece = Piece(flat, self.comm, data, grad)
        piece.parameters = [leaf]
        leaf.grad_target = GradientSlot(weight_only=True)
        leaf.slot.get_grad_buffer = lambda: grad
        leaf.slot.ready_hooks.append(lambda slot: setattr(piece, "has_grad", True))
        parameter.data = Unmaterialized(parameter.shape, parameter.dtype)
        parameter.slot.get_grad_buffer = None
        self._leaves[parameter.slot] = segment.name, leaf
        return piece

    def gather(self, parameter: Tensor) -> Tensor:
        """The whole weight, for one use."""
        name, leaf = self._leaves[parameter.slot]
        self._uses.append(name)
        whole = all_gather(leaf, self.comm, total=parameter.size)
        owner = record_allocation("communication", storage(whole.data))
        self._gathered[id(owner)] = leaf
        weakref.finalize(owner, self._gathered.pop, id(owner)).atexit = False
        return whole.reshape(parameter.shape)

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """Context for computing a loss: operations save a note in place of a gathered weight.

        Raises RuntimeError at its end unless all ranks used the same weights.
        """
        self._uses.clear()
        with saved_tensors_hooks(self._note, lambda kept: kept() if callable(kept) else kept):
            yield
        check_uses(self._uses, self.comm)

    def _note(self, array: Array) -> Any:
        owner = storage(array)
        leaf = self._gathered.get(id(owner))
        view = None if leaf is None else view_spec(array, owner)
        if leaf is None or view is None:
            return array
        return partial(self._gather_again, leaf, owner.size, view)

    def _gather_again(self, leaf: Tensor, size: int, view: ViewSpec) -> Array:
        whole = gather_array(self.comm, leaf.data, total=size)
        return view_from_spec(record_allocation("communication", whole), view)
