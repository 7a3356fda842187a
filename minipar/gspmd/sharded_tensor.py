"""ShardedTensor: a tensor whose pieces lie on the ranks of a mesh; operations run eagerly.

    x = distribute(array, mesh, P("dp"))            PyTorch: distribute_tensor(…, [Shard(0), …])
    w = distribute(weights, mesh, P(None, "tp"))
    y = x @ w                                       (dp, tp): no message
    z = y @ v                                       partial sums over tp, not summed yet
    z.redistribute(P("dp"))                         now they are
    z.full_tensor()                                 the whole tensor, on every rank

As in PyTorch's DTensor, each operation is placed on the ranks when it is called.  The factor rules
and the collectives are those of a partitioned program.  No sharding propagates back from later
operations.  A ShardedTensor has the operators and the main methods of Tensor.  Any other function
of Tensors works on it through `sharded(function)`.
"""

import math
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
from .partitioning.reshard import ShardedLayout
from .propagate import all_open
from .spec import Dims, PartitionSpec


def _operator(name: str) -> Callable[..., "ShardedTensor"]:
    """The binary operator `name` of Tensor, if one operand is sharded or both are."""
    def run(*operands: Any) -> "ShardedTensor":
        return sharded(getattr(Tensor, name))(*operands)
    return run


def _method(name: str) -> Callable[..., Any]:
    """The method `name` of Tensor, whose arguments are no tensors."""
    def run(x: "ShardedTensor", *arguments: Any, **options: Any) -> Any:
        return sharded(lambda tensor: getattr(tensor, name)(*arguments, **options))(x)
    run.__doc__ = getattr(Tensor, name).__doc__
    return run


class ShardedTensor:
    """A tensor of `shape`; this rank has the piece `local`, without padding.

    `layout` says which axes cut each dimension, and along which axes the pieces are parts of a sum.
    Operators and methods are collective, but for `detach`.
    """

    __array_ufunc__ = None          # NumPy leaves array * sharded to this class
    refusal = ("a function of Tensors was called with a ShardedTensor: call sharded(function) "
               "instead, as sharded(ag.exp)(x)")

    def __init__(self, local: Tensor, shape: tuple[int, ...], layout: ShardedLayout,
                 mesh: DeviceMesh):
        self.local, self.shape, self.layout, self.mesh = local, shape, layout, mesh

    dtype = property(lambda self: self.local.dtype)
    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    requires_grad = property(lambda self: self.local.requires_grad)

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
        """Compute the gradients of all leaves, from one number that is not a partial sum."""
        if self.shape or self.layout.partial:
            raise ValueError(f"backward starts from one whole number, not from {self!r}: sum() it, "
                             "and redistribute(P())")
        self.local.backward()

    @property
    def grad(self) -> Array | None:
        """This rank's piece of the gradient of a leaf."""
        return self.local.grad

    @grad.setter
    def grad(self, piece: Array | None) -> None:
        self.local.grad = piece

    def detach(self) -> "ShardedTensor":
        """The same tensor, without its graph."""
        return ShardedTensor(self.local.detach(), self.shape, self.layout, self.mesh)

    def item(self) -> float:
        """The number in a tensor of one element."""
        return self.full_tensor().item()

    def __bool__(self) -> bool:
        return bool(self.full_tensor())

    def __repr__(self) -> str:
        places = ", ".join(f"{axis}: {place}" for axis, place in self.placements.items())
        return f"ShardedTensor{self.shape}({places})"

    def __array__(self, *arguments: Any, **options: Any) -> Array:
        raise TypeError("this needs an array, not a ShardedTensor: pass full_tensor().data")

    # operators and methods of Tensor; an index consists of integers and slices
    __add__, __radd__ = _operator("__add__"), _operator("__radd__")
    __sub__, __rsub__ = _operator("__sub__"), _operator("__rsub__")
    __mul__, __rmul__ = _operator("__mul__"), _operator("__rmul__")
    __truediv__, __rtruediv__ = _operator("__truediv__"), _operator("__rtruediv__")
    __matmul__, __rmatmul__ = _operator("__matmul__"), _operator("__rmatmul__")
    __neg__, __pow__, __getitem__ = _method("__neg__"), _method("__pow__"), _method("__getitem__")
    sum, mean, max = _method("sum"), _method("mean"), _method("max")
    reshape, transpose, split = _method("reshape"), _method("transpose"), _method("split")
    astype = _method("astype")
    T = property(lambda self: self.transpose())


def distribute(array: Array, mesh: DeviceMesh, spec: PartitionSpec,
               requires_grad: bool = False) -> ShardedTensor:
    """Each rank's piece of `array`, which is the same on all ranks.

    Raises ValueError for a spec that does not fit.
    """
    cut = ShardedTensor(Tensor(array), tuple(array.shape),
                        ShardedLayout(spec.dims_of(array.shape, mesh.shape, "the array")), mesh)
    placed = Placed(lambda x: constrain(x, spec), mesh, (cut,), {})
    piece = placed.executable.piece_of(placed.executable.program.inputs["x0"], array)
    cut.local = Tensor(np.array(piece), requires_grad)
    return cut


def sharded(function: Callable) -> Callable:
    """`function`, on ShardedTensors: sharded(ag.softmax)(x).

    Positional arguments may be ShardedTensors, Tensors and arrays that are the same on all ranks,
    and lists of them; all else is passed on.  Operations are placed one after the other, each where
    its operands are.  Raises TypeError without a ShardedTensor, and ValueError for ShardedTensors
    of different meshes.
    """
    def run(*inputs: Any, **options: Any) -> Any:
        given = [x for x in leaves((inputs, options)) if isinstance(x, ShardedTensor)]
        meshes = [x.mesh for x in given]
        if not meshes:
            raise TypeError("a ShardedTensor was expected among the arguments, but there is none: "
                            "distribute one, or call the function itself")
        if any(mesh.shape != meshes[0].shape for mesh in meshes):
            raise ValueError(f"ShardedTensors of one operation lie on one mesh, not on "
                             f"{' and '.join(str(dict(mesh.shape)) for mesh in meshes)}")
        placed = Placed(function, meshes[0], changed(
            inputs, lambda x: replicated(x, meshes[0]) if is_array(x) else x), options)
        pieces = placed.executable({name: x.local for name, x in placed.operands.items()})
        results = [ShardedTensor(piece, local.value.shape, local.layout, meshes[0])
                   for piece, local in zip(pieces, placed.executable.program.outputs)]
        return results if placed.makes_list else results[0]
    return run


def is_array(x: Any) -> bool:
    """True for a Tensor and for an array with axes."""
    return isinstance(x, Tensor) or isinstance(getattr(x, "ndim", None), int) and x.ndim > 0 \
        and not isinstance(x, ShardedTensor)


def leaves(x: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dictionaries, in order."""
    parts = x.values() if isinstance(x, dict) else x if type(x) in (list, tuple) else None
    return [x] if parts is None else [leaf for part in parts for leaf in leaves(part)]


def changed(x: Any, change: Callable[[Any], Any]) -> Any:
    """The same tuples, lists and dictionaries, with changed leaves."""
    if isinstance(x, dict):
        return {name: changed(part, change) for name, part in x.items()}
    return type(x)([changed(part, change) for part in x]) if type(x) in (list, tuple) else change(x)


def replicated(x: Any, mesh: DeviceMesh) -> ShardedTensor:
    """A Tensor or an array that is the same on every rank, as a ShardedTensor."""
    tensor = x if isinstance(x, Tensor) else Tensor(x)
    return ShardedTensor(tensor, tensor.shape, ShardedLayout(((),) * tensor.ndim), mesh)


class Placed:
    """A function, placed on the ranks for the layouts of the ShardedTensors among its arguments.

    `makes_list` is True if the function returns several Tensors.
    """

    def __init__(self, function: Callable, mesh: DeviceMesh, inputs: tuple,
                 options: dict[str, Any]):
        given = [x for x in leaves((inputs, options)) if isinstance(x, ShardedTensor)]
        self.operands = {f"x{i}": x for i, x in enumerate(given)}

        def of_tensors(*given: Tensor) -> Any:
            """The function of its Tensors alone: all other arguments are filled in."""
            tensors = iter(given)
            arguments, named = changed((inputs, options), lambda x: next(tensors) if isinstance(
                x, ShardedTensor) else x)
            result = function(*arguments, **named)
            self.makes_list = not isinstance(result, Tensor)
            return result

        examples = [Tensor(ShapeArray(x.shape, x.dtype), x.local.requires_grad)
                    for x in self.operands.values()]
        graph = trace(of_tensors, *examples, names=list(self.operands))
        layouts = {name: x.layout for name, x in self.operands.items()}
        self.executable = Executable(EagerPartitioner(graph, mesh, layouts).run(), mesh)


class EagerPartitioner(Partitioner):
    """Places operations one after the other; results stay where they are made, unsummed."""

    def __init__(self, graph: Graph, mesh: DeviceMesh, layouts: dict[str, ShardedLayout]):
        shardings = all_open(graph, mesh.shape)
        for name, layout in layouts.items():
            shardings.dims[graph.inputs[name]] = list(layout.dims)
        self.layouts = layouts
        super().__init__(graph, shardings)

    def enter(self, value: Any) -> Local:
        """The piece of an operand, which may be a partial sum."""
        layout = self.layouts.get(value.name, ShardedLayout(((),) * len(value.shape)))
        self.home[value] = Local(value, layout, self.mesh)
        return self.home[value]

    def goal(self, operation: Operation, made: ShardedLayout) -> Dims | None:
        """The layout that `constrain` asks for; None for other operations."""
        spec = operation.options.get("spec")
        if isinstance(spec, PartitionSpec):
            return spec.dims_of(operation.result.shape, self.mesh, operation.name)
        return None
