"""shard: a program for one device, cut over the ranks of a mesh as a few annotations say.

    def loss(model, ids, targets):                          # knows nothing of ranks
        return model.loss(ids, targets, loss_divisor=ids.size)

    step = shard(loss, ids, targets, model=GPT(config), mesh=DeviceMesh(comm, dp=2, tp=2),
                 annotations={"x0": P("dp"), "h.*.mlp.c_fc.weight": P(None, "tp"), …})
    step.initialize(seed=0)
    step(ids, targets).backward()
    optimizer = AdamW(step.slabs)

Each rank draws the initial values that one process would draw, and keeps its pieces of them.  The
pieces lie in slabs, flat arrays of many parameters each, which the optimizer updates.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from ..autograd import Tensor, no_grad
from ..backend import Array, asarray_like, to_host
from ..backend.shape_array import ShapeArray
from ..comm.mesh import DeviceMesh
from ..nn import Module, Parameter, Slab
from ..nn.parameter import mark_changed
from ..nn.slab import Buffers
from ..parallel.conjugate import gather_from
from ..random import generator
from .execution.execute import Executable
from .execution.padding import Reorder, pad, strip
from .graph import Graph, trace
from .partitioning.partition import partition
from .partitioning.program import Local, LocalProgram
from .propagate import Shardings, propagate
from .spec import PartitionSpec, all_axes


class ShardingPlan(NamedTuple):
    """A partitioned program, worked out without any ranks."""

    graph: Graph
    shardings: Shardings
    program: LocalProgram


def plan(function: Callable, *inputs: Any, mesh: Mapping[str, int],
         annotations: Mapping[str, PartitionSpec], model: Module | None = None,
         names: Sequence[str] = (), dtype: Any = np.float32) -> ShardingPlan:
    """Trace, propagate and partition function(*inputs), or function(model, *inputs).

    `mesh` maps axes to sizes; `annotations` map names of inputs, parameters and results to specs.
    `names` are the names of the inputs, by default x0, x1, …; `dtype` is for a model that has no
    numbers yet.  Raises what `trace` and `propagate` raise.
    """
    shapes = None if model is None else shape_only(model, dtype)
    graph = trace(function, *inputs, model=shapes, names=names)
    shardings = propagate(graph, mesh, annotations)
    return ShardingPlan(graph, shardings, partition(graph, shardings))


def shape_only(model: Module, dtype: Any) -> Module:
    """A copy of the model without numbers, in `dtype` unless the model has numbers of its own."""
    if model.slabs:
        dtype = model.slabs[0].data.dtype
    return deepcopy(model).to_empty(dtype, ShapeArray((0,), dtype))


class ShardedSlab(Slab):
    """A slab of pieces of parameters that are cut along the same axes."""

    owner: "ShardedFunction"

    def named(self, values: Array) -> dict[str, np.ndarray]:
        """`values`, an array like `data`, gathered from all ranks, by name.  Collective."""
        return {s.name: self.owner.whole(s.name, values[s.start:s.stop].reshape(s.shape))
                for s in self.segments}


class ShardedFunction:
    """A partitioned program on this rank, and its pieces of the parameters.

    An optimizer takes its `slabs`.  Construction, calls and backward are collective.
    """

    def __init__(self, planned: ShardingPlan, mesh: DeviceMesh, model: Module | None = None):
        self.plan, self.mesh = planned, mesh
        self._executable = Executable(planned.program, mesh)
        self._data = {name: local for name, local in planned.program.inputs.items()
                      if not local.value.is_parameter}
        self.parameters: dict[str, Parameter] = {}
        self.slabs = Buffers()
        for name, parameter in [] if model is None else model.named_parameters():
            local = planned.program.inputs[name]
            mine = Parameter(parameter.global_shape, parameter.initializer)
            order = self._executable.order_of(local)
            mine.shard(self._executable.box_of(local),
                       None if order is None else tuple(order.tolist()))
            self.parameters[name] = mine

    def initialize(self, seed: int = 0, dtype: Any = np.float32, array: Array = None
                   ) -> "ShardedFunction":
        """Draw the parameters' initial values as one process does, and keep this rank's pieces.

        `array` decides where they live, as in Module.initialize.
        """
        self.make_slabs(np.empty(0, dtype, like=array))
        for name, parameter in self.parameters.items():
            self._fill(name, parameter.initializer(generator(seed, name), parameter.global_shape))
        return self

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Copy this rank's pieces of whole parameters, given by name."""
        if not self.slabs:
            self.make_slabs(np.empty(0, next(iter(state.values())).dtype))
        for name in self.parameters:
            self._fill(name, state[name])

    def state_dict(self) -> dict[str, np.ndarray]:
        """Collective.  A host copy of every whole parameter by name."""
        return self.slabs.named([slab.data for slab in self.slabs])

    def make_slabs(self, like: Array) -> None:
        """Put the pieces into slabs, one for each set of axes along which they are cut."""
        groups: dict[tuple[str, ...], list[tuple[str, Parameter]]] = {}
        for name, parameter in self.parameters.items():
            used = all_axes(self._local(name).layout.dims)
            axes = tuple([axis for axis in self.mesh.axes if axis in used])
            groups.setdefault(axes, []).append((name, parameter))
        self.slabs = Buffers()
        for axes, named in groups.items():
            slab = ShardedSlab(named, like)
            slab.owner, slab.norm_comm = self, self.mesh[axes] if axes else None
            self.slabs.append(slab)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for slab in self.slabs:
            slab.zero_grad()

    def __call__(self, *inputs: Any) -> Any:
        """Run the program on whole inputs, the same on every rank; each uses its pieces of them.

        Inputs are arrays, or Tensors that need no gradient; others raise ValueError.  Returns this
        rank's pieces of the outputs: a Tensor, or several.  A loss, which is not cut, is the same
        on every rank.
        """
        if len(inputs) != len(self._data):
            raise ValueError(f"the program takes {', '.join(self._data)}: {len(self._data)} "
                             f"arrays, not {len(inputs)}")
        pieces: dict[str, Tensor] = dict(self.parameters)
        for (name, local), whole in zip(self._data.items(), inputs):
            if tuple(whole.shape) != local.value.shape:
                raise ValueError(f"{name} has the shape {tuple(whole.shape)}, but the program was "
                                 f"traced with {local.value.shape}: shard it again")
            if isinstance(whole, Tensor):
                if whole.requires_grad:
                    raise ValueError(f"{name} needs a gradient, which only pieces get: give "
                                     "run() this rank's piece of it, or make it a parameter")
                whole = whole.data
            pieces[name] = Tensor(self._executable.piece_of(local, whole))
        return self.run(pieces)

    def run(self, pieces: Mapping[str, Tensor]) -> Any:
        """Run the program on this rank's pieces of the inputs by name."""
        outputs = self._executable(pieces)
        return outputs[0] if len(outputs) == 1 else outputs

    def whole(self, name: str, piece: Array) -> np.ndarray:
        """Collective.  The whole array from each rank's `piece`, cut as the parameter `name` is."""
        local = self._local(name)
        with no_grad():
            x = pad(Tensor(piece), local.shape)
            for dim, axes in enumerate(local.layout.dims):
                if axes:
                    x = gather_from(x, self._executable.along(axes), dim)
            x = strip(x, local.value.shape)
            order = self._executable.order_of(local)
            if order is not None:
                x = Reorder.apply(x, order=np.argsort(order))
        return np.array(to_host(x.data))

    def _fill(self, name: str, values: np.ndarray) -> None:
        parameter = self.parameters[name]
        parameter.data[...] = asarray_like(
            parameter.local_part(values).astype(parameter.dtype), parameter.data)
        mark_changed([parameter])

    def _local(self, name: str) -> Local:
        return self.plan.program.inputs[name]


def shard(function: Callable, *inputs: Any, mesh: DeviceMesh,
          annotations: Mapping[str, PartitionSpec], model: Module | None = None,
          names: Sequence[str] = (), dtype: Any = np.float32) -> ShardedFunction:
    """Collective.  The program of `plan`, on the ranks of `mesh`.

    An initialized model gives its values; otherwise call `initialize` afterwards.
    """
    planned = plan(function, *inputs, mesh=mesh.shape, annotations=annotations, model=model,
                   names=names, dtype=dtype)
    sharded = ShardedFunction(planned, mesh, model)
    if model is not None and model.slabs:
        sharded.load_state_dict(model.state_dict())
    return sharded
