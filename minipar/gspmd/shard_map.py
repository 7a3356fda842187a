"""shard_map: a function on pieces, with collectives of its own, within an annotated program.

    def ring(mesh, q, k, v): …                          each rank: its pieces, and mesh["cp"]

    attend = shard_map(ring, {"cp": 4}, [P(None, None, "cp")] * 3, P(None, None, "cp"))
    y = attend(q, k, v)                                 in the program: one operation

The operands are cut as `in_specs` say, the result as `out_spec` says.  The function uses the
conjugate pairs of `parallel/conjugate.py`, and that file explains the types R and
I.  Along an axis that cuts the result, ranks use a whole operand for different data.  So the
operand arrives as R, and its gradient is summed.  Along every other axis, whole operands and the
result are the same on all ranks (I).  There the function must call copy_to before ranks use an
operand for different data.  In JAX: jax.shard_map.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..autograd import Function, Meter, Tensor
from ..autograd.engine import reachable_slots
from ..autograd.meter import current_meter
from ..backend.shape_array import ShapeArray
from ..comm.mesh import DeviceMesh
from ..comm.simulated import Cluster
from .graph import Operation
from .rules.rule import FactorRule
from .spec import Axes, Dims, PartitionSpec, local_shape, num_pieces

Body = Callable[..., Tensor]        # (mesh, *pieces) -> the piece of the result


class BodyMeter(Meter):
    """Sees the operations of a shard_map's function; refuses values of the program around it.

    On the ranks such a value would have no numbers: only operands are brought there.
    """

    sees_views = True

    def __init__(self, outer: Meter | None):
        super().__init__()
        self.outer_values = getattr(outer, "values", {})        # the values of a Tracer

    def forward(self, function: Any, ctx: Any, arrays: list, options: dict) -> Any:
        """Run `function`'s forward.  Raises ValueError for a captured value."""
        for array in arrays:
            if isinstance(array, ShapeArray) and id(array) in self.outer_values:
                raise ValueError(f"the function captures an array {array.shape} of the program "
                                 "around it: pass it as an operand")
        return function.forward(ctx, *arrays, **options)


class ShardMap(Function):
    """body(mesh, *pieces) on each rank of a partitioned program; it cannot run elsewhere."""

    metered = False

    @staticmethod
    def forward(ctx, *arrays, body, mesh, in_specs, spec):
        if not all(isinstance(array, ShapeArray) for array in arrays):
            raise TypeError("shard_map runs on the ranks of a mesh: call it in a program that "
                            "gspmd.shard partitions")
        pieces = [local_shape(array.shape, checked(each, array.shape, mesh, f"operand {i}"), mesh)
                  for i, (array, each) in enumerate(zip(arrays, in_specs, strict=True))]
        piece = piece_of_result(body, mesh, pieces, [array.dtype for array in arrays])
        dims = spec.dims_of(piece, mesh, "the result")
        shape = tuple([n * num_pieces(axes, mesh) for n, axes in zip(piece, dims)])
        return arrays[0].new_array(shape)


def checked(spec: PartitionSpec, shape: tuple[int, ...], mesh: Mapping[str, int],
            name: str) -> Dims:
    """The axes of each dimension.  Raises ValueError for a length that its axes do not divide."""
    dims = spec.dims_of(shape, mesh, name)
    for n, axes in zip(shape, dims):
        if n % num_pieces(axes, mesh):
            raise ValueError(f"shard_map cuts {name} {shape} by {spec}, but {n} does not divide by "
                             f"{num_pieces(axes, mesh)}: pad it")
    return dims


def piece_of_result(body: Body, mesh: Mapping[str, int], shapes: Sequence[tuple[int, ...]],
                    dtypes: Sequence[Any]) -> tuple[int, ...]:
    """The shape of a rank's result, found by running the function on ranks without numbers.

    Raises ValueError for values and weights that the function captures, and for unequal pieces.
    """
    meter = BodyMeter(current_meter())

    def on_rank(comm: Any) -> tuple[int, ...]:
        with meter.running():               # not the tracer: these operations are the function's
            own = DeviceMesh(comm, order=tuple(mesh), **mesh)
            pieces = [Tensor(ShapeArray(shape, dtype), requires_grad=dtype.kind == "f")
                      for shape, dtype in zip(shapes, dtypes)]
            result = body(own, *pieces)
        if reachable_slots(result) - {piece.grad_target for piece in pieces}:
            raise ValueError("the function captures an array that needs a gradient, of which each "
                             "rank would get a part: pass it as an operand, whole by P()")
        return result.shape

    found = set(Cluster(math.prod(mesh.values())).run(on_rank)[0])
    if len(found) > 1:
        raise ValueError(f"the ranks return pieces of different shapes, {sorted(found)}: pieces of "
                         "one array are equal")
    return found.pop()


def shard_map_rule(operation: Operation) -> FactorRule:
    """Each dimension is a factor of its own, cut as the specs say and no other way."""
    def own(kind: str, shape: tuple[int, ...]) -> tuple[tuple[str, ...], ...]:
        return tuple([(f"{kind}.{i}",) for i in range(len(shape))])

    shapes = {f"x{i}": x.shape for i, x in enumerate(operation.inputs)}
    operands = tuple([own(kind, shape) for kind, shape in shapes.items()])
    result = own("y", operation.result.shape)
    sizes = {f"{kind}.{i}": n for kind, shape in {**shapes, "y": operation.result.shape}.items()
             for i, n in enumerate(shape)}
    return FactorRule(operands, result, sizes, frozenset(sizes), combine="inside")


def cut_of(operation: Operation) -> dict[str, Axes]:
    """The axes of each dimension's factor, from the specs."""
    mesh, specs = operation.options["mesh"], operation.options["in_specs"]
    cut = {f"x{i}.{dim}": axes for i, (x, spec) in enumerate(zip(operation.inputs, specs))
           for dim, axes in enumerate(spec.dims_of(x.shape, mesh, x.name))}
    dims = operation.options["spec"].dims_of(operation.result.shape, mesh, "the result")
    return cut | {f"y.{dim}": axes for dim, axes in enumerate(dims)}


def shard_map(function: Body, mesh: Mapping[str, int], in_specs: Sequence[PartitionSpec],
              out_spec: PartitionSpec) -> Callable[..., Tensor]:
    """`function(mesh, *pieces)` as a function of whole Tensors in a partitioned program.

    `mesh` maps the axes of the program's mesh to their sizes; `in_specs` say how the operands are
    cut.  Axes must divide the lengths that they cut.  When the program is traced, the function runs
    on simulated ranks, without numbers, to find the shape of its result.
    """
    def run(*operands: Tensor) -> Tensor:
        if len(operands) != len(in_specs):
            raise ValueError(f"shard_map has {len(in_specs)} in_specs, but {len(operands)} "
                             "operands: one for each")
        return ShardMap.apply(*operands, body=function, mesh=dict(mesh), in_specs=tuple(in_specs),
                              spec=out_spec)
    return run
