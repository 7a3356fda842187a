"""ShardedTensor: a tensor whose pieces lie on the ranks of a mesh, computed with at once.

    x = distribute(array, mesh, P("dp"))            PyTorch: distribute_tensor(…, [Shard(0), …])
    w = distribute(weights, mesh, P(None, "tp"))
    y = x @ w                                       (dp, tp): no message
    z = y @ v                                       partial sums over tp, not summed yet
    z.redistribute(P("dp"))                         now they are
    z.full_tensor()                                 the whole tensor, on every rank

As PyTorch's DTensor it sees one operation at a time: the same factor rules and collectives as a
partitioned program, but no propagation back from what comes later.  Any function of Tensors works
on ShardedTensors through `sharded(function)`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..autograd import Tensor
from ..backend import Array
from ..backend.shape_array import ShapeArray
from ..comm.mesh import DeviceMesh
from .constrain import constrain
from .execution.execute import Executable
from .graph import Graph, Operation, trace
from .partitioning.partition import Partitioner
from .partitioning.program import Local
from .partitioning.reshard import Layout
from .propagate import all_open
from .spec import Dims, PartitionSpec


class ShardedTensor:
    """A tensor of `shape`, of which this rank has the piece `local`, without padding.

    `layout` says which axes cut each dimension, and along which axes the pieces are parts of a sum.
    All methods are collective.
    """

    __array_ufunc__ = None          # array * sharded: NumPy steps back

    def __init__(self, local: Tensor, shape: tuple[int, ...], layout: Layout, mesh: DeviceMesh):
        self.local, self.shape, self.layout, self.mesh = local, shape, layout, mesh

    dtype = property(lambda self: self.local.dtype)
    ndim = property(lambda self: len(self.shape))

    @property
    def placements(self) -> dict[str, str]:
        """For each axis of the mesh Shard(dim), Partial() or Replicate(), in PyTorch's words."""
        found = dict.fromkeys(self.mesh.axes, "Replicate()")
        found |= dict.fromkeys(self.layout.partial, "Partial()")
        return found | {axis: f"Shard({dim})" for dim, axes in enumerate(self.layout.dims)
                        for axis in axes}

    def redistribute(self, spec: PartitionSpec) -> "ShardedTensor":
        """The same tensor, cut as `spec` says; partial sums are summed."""
        return sharded(constrain)(self, spec=spec)

    def full_tensor(self) -> Tensor:
        """The whole tensor, the same on every rank."""
        return self.redistribute(PartitionSpec()).local

    def backward(self) -> None:
        """Compute the gradients of all leaves, from a tensor of one element."""
        if self.shape or self.layout.partial:
            raise ValueError(f"backward starts from one whole number, not from {self!r}: sum() it, "
                             "and redistribute(P())")
        self.local.backward()

    @property
    def grad(self) -> Array | None:
        """This rank's piece of the gradient of a leaf."""
        return self.local.grad

    def __repr__(self) -> str:
        places = ", ".join(f"{axis}: {place}" for axis, place in self.placements.items())
        return f"ShardedTensor{self.shape}({places})"

    def __add__(self, other: Any) -> "ShardedTensor":
        return sharded(_add)(self, other)

    def __sub__(self, other: Any) -> "ShardedTensor":
        return sharded(_subtract)(self, other)

    def __mul__(self, other: Any) -> "ShardedTensor":
        return sharded(_multiply)(self, other)

    def __truediv__(self, other: Any) -> "ShardedTensor":
        return sharded(_divide)(self, other)

    def __matmul__(self, other: Any) -> "ShardedTensor":
        return sharded(_matmul)(self, other)

    def sum(self, axis: Any = None, keepdims: bool = False) -> "ShardedTensor":
        """Σ over axes."""
        return sharded(Tensor.sum)(self, axis=axis, keepdims=keepdims)

    def reshape(self, *shape: int) -> "ShardedTensor":
        """The same elements in another shape."""
        return sharded(_reshape)(self, shape=shape)

    def transpose(self, *axes: int) -> "ShardedTensor":
        """The axes in another order."""
        return sharded(_transpose)(self, axes=axes)


def _add(a: Any, b: Any) -> Tensor:
    return a + b


def _subtract(a: Any, b: Any) -> Tensor:
    return a - b


def _multiply(a: Any, b: Any) -> Tensor:
    return a * b


def _divide(a: Any, b: Any) -> Tensor:
    return a / b


def _matmul(a: Any, b: Any) -> Tensor:
    return a @ b


def _reshape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x.reshape(*shape)


def _transpose(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.transpose(*axes)


def distribute(array: Array, mesh: DeviceMesh, spec: PartitionSpec,
               requires_grad: bool = False) -> ShardedTensor:
    """Each rank's piece of `array`, which is the same on all ranks.

    Raises ValueError for a spec that does not fit.
    """
    cut = ShardedTensor(Tensor(array), tuple(array.shape),
                        Layout(spec.dims_of(array.shape, mesh.shape, "the array")), mesh)
    placed = Placed(lambda x: constrain(x, spec), mesh, [cut], {})
    piece = placed.executable.piece_of(placed.executable.program.inputs["x0"], array)
    cut.local = Tensor(np.array(piece), requires_grad)
    return cut


def sharded(function: Callable[..., Tensor]) -> Callable[..., ShardedTensor]:
    """`function`, on ShardedTensors: sharded(ag.softmax)(x).

    Positional arguments may be ShardedTensors, Tensors and arrays that are the same on all ranks,
    and numbers; keyword arguments are options.  Operations are placed one after the other, each
    where its operands are.
    """
    def run(*inputs: Any, **options: Any) -> ShardedTensor:
        mesh = next(x.mesh for x in inputs if isinstance(x, ShardedTensor))
        placed = Placed(function, mesh, [
            x if isinstance(x, ShardedTensor) or not hasattr(x, "dtype") else replicated(x, mesh)
            for x in inputs], options)
        (result,) = placed.executable({name: x.local for name, x in placed.operands.items()})
        (local,) = placed.executable.program.outputs
        return ShardedTensor(result, local.value.shape, local.layout, mesh)
    return run


def replicated(x: Any, mesh: DeviceMesh) -> ShardedTensor:
    """A Tensor or an array that is the same on every rank."""
    tensor = x if isinstance(x, Tensor) else Tensor(x)
    return ShardedTensor(tensor, tensor.shape, Layout(((),) * tensor.ndim), mesh)


class Placed:
    """A function of sharded tensors and numbers, placed on the ranks for operands that lie so."""

    def __init__(self, function: Callable, mesh: DeviceMesh, inputs: list[Any],
                 options: dict[str, Any]):
        self.operands = {f"x{i}": x for i, x in enumerate(inputs) if isinstance(x, ShardedTensor)}

        def of_tensors(*given: Tensor) -> Tensor:
            """The function, with the numbers among its arguments filled in."""
            tensors = iter(given)
            return function(*[next(tensors) if isinstance(x, ShardedTensor) else x
                              for x in inputs], **options)

        examples = [Tensor(ShapeArray(x.shape, x.dtype), x.local.requires_grad)
                    for x in self.operands.values()]
        graph = trace(of_tensors, *examples, names=list(self.operands))
        layouts = {name: x.layout for name, x in self.operands.items()}
        self.executable = Executable(EagerPartitioner(graph, mesh, layouts).run(), mesh)


class EagerPartitioner(Partitioner):
    """Places operations one after the other; results stay where they are made, unsummed."""

    def __init__(self, graph: Graph, mesh: DeviceMesh, layouts: dict[str, Layout]):
        shardings = all_open(graph, mesh.shape)
        for name, layout in layouts.items():
            shardings.dims[graph.inputs[name]] = list(layout.dims)
        self.layouts = layouts
        super().__init__(graph, shardings)

    def enter(self, value: Any) -> Local:
        """An operand, perhaps of partial sums."""
        layout = self.layouts.get(value.name, Layout(((),) * len(value.shape)))
        self.home[value] = Local(value, layout, self.mesh)
        return self.home[value]

    def goal(self, operation: Operation, made: Layout) -> Dims | None:
        """The layout that `constrain` asks for; None for other operations."""
        spec = operation.options.get("spec")
        if isinstance(spec, PartitionSpec):
            return spec.dims_of(operation.result.shape, self.mesh, operation.name)
        return None
