"""The traced graph: the operations of a function and the values between them, without numbers.

    x ──▶ linear ──▶ gelu ──▶ linear ──▶ y         a value has a shape, a dtype and one producer
    w1 ────┘                    │                  an operation is one call of a Function
    w2 ─────────────────────────┘

The function runs once on shape-only arrays, as under jax.jit.  So what it does may depend on
shapes, never on numbers.  A meter sees every operation and notes it.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..autograd import Function, Meter, Tensor
from ..backend import Array
from ..backend.shape_array import ShapeArray
from ..nn import Module


@dataclass(eq=False)
class Value:
    """An array of the program: an input, a constant or the result of an operation.

    `constant` holds the numbers of an array that the function made itself.  `sections` are the
    lengths of parts side by side along the last dimension, as q, k and v of a fused attention;
    each part is cut by itself.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    operation: "Operation | None" = None
    constant: Array | None = None
    is_parameter: bool = False
    needs_grad: bool = False
    num_uses: int = 0
    sections: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"{self.name}{list(self.shape)}"


@dataclass(eq=False)
class Operation:
    """One call of `function` on `inputs`: Values, or numbers and None as they were given."""

    function: type[Function]
    inputs: list[Any]
    options: dict[str, Any]
    result: Value
    key: tuple = ()             # sorts operations, independent of the order in which they were made

    @property
    def name(self) -> str:
        """The name of the operation and of its result."""
        return self.result.name

    @property
    def values(self) -> list[Value]:
        """The inputs that are arrays."""
        return [x for x in self.inputs if isinstance(x, Value)]


@dataclass
class Graph:
    """The inputs by name, all operations in an order in which they can run, and the outputs."""

    inputs: dict[str, Value]
    operations: list[Operation]
    outputs: list[Value]
    constants: list[Value] = field(default_factory=list)


class Tracer(Meter):
    """A meter that notes each operation of a function, instead of counting it."""

    sees_views = True

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[int, Value] = {}
        self.operations: list[Operation] = []
        self.constants: list[Value] = []
        self._alive: list[Array] = []       # an array that was freed would lend its id to another

    def note(self, array: Array, value: Value) -> None:
        """Remember that `array` is `value`."""
        self.values[id(array)] = value
        self._alive.append(array)

    def forward(self, function: Any, ctx: Any, arrays: list, options: dict) -> Array:
        """Run the operation on shapes, and note it.

        Raises ValueError if the function captures an array that needs a gradient: its numbers would
        be constants of the program.
        """
        for array, needs_grad in zip(arrays, ctx.needs_grad):
            if needs_grad and id(array) not in self.values:
                raise ValueError(f"the program captures an array {array.shape} that needs a "
                                 "gradient, which it would not get: pass it as an argument or "
                                 "within the model; or detach() it, if it is a constant")
        out = function.forward(ctx, *arrays, **options)
        inputs = [self._known(array) for array in arrays]
        result = Value("", out.shape, out.dtype,
                       needs_grad=any(ctx.needs_grad))
        numbers = {name: getattr(each, "numbers", each) if isinstance(each, ShapeArray) else each
                   for name, each in options.items()}
        result.operation = Operation(function, inputs, numbers, result)
        self.operations.append(result.operation)
        self.note(out, result)
        return out

    def _known(self, array: Any) -> Any:
        if not hasattr(array, "dtype") or not array.ndim and not isinstance(array, ShapeArray):
            return array                    # a number, or None
        if id(array) not in self.values:
            numbers = array.numbers if isinstance(array, ShapeArray) else array
            if numbers is None:
                raise ValueError(f"the program uses an array {array.shape} that is neither an "
                                 "input nor computed by an operation: a dropout mask, say; pass "
                                 "it as an argument, or leave dropout off")
            constant = Value(f"constant:{len(self.constants)}", array.shape, array.dtype,
                             constant=numbers)
            self.constants.append(constant)
            self.note(array, constant)
        return self.values[id(array)]


def trace(function: Callable[..., Tensor | Sequence[Tensor]], *inputs: Any,
          model: Module | None = None, names: Sequence[str] = ()) -> Graph:
    """The graph of function(*inputs), or of function(model, *inputs) if a `model` is given.

    `inputs` are arrays or Tensors; only their shapes and dtypes matter.  An array reaches the
    function as an array, a Tensor as a Tensor.  A model's parameters become inputs under their
    full names.  The other inputs have `names`, by default x0, x1, ….  Raises ValueError for a
    result that is neither an input nor made by an operation, and for captured weights.
    """
    tracer = Tracer()
    known: dict[str, Value] = {}

    def enter(name: str, array: Array, needs_grad: bool, is_parameter: bool = False) -> None:
        known[name] = Value(name, tuple(array.shape), array.dtype, is_parameter=is_parameter,
                            needs_grad=needs_grad)
        tracer.note(array, known[name])

    arguments: list[Any] = []
    for name, x in zip(names or [f"x{i}" for i in range(len(inputs))], inputs, strict=True):
        needs_grad = isinstance(x, Tensor) and x.requires_grad
        shape = ShapeArray(x.shape, x.dtype)
        enter(name, shape, needs_grad)
        arguments.append(Tensor(shape, needs_grad) if isinstance(x, Tensor) else shape)
    if model is not None:
        for name, parameter in model.named_parameters():
            enter(name, parameter.data, needs_grad=True, is_parameter=True)
        arguments.insert(0, model)
    with tracer.running():
        results = function(*arguments)
    outputs = [results] if isinstance(results, Tensor) else list(results)
    for out in outputs:
        if id(out.data) not in tracer.values:
            raise ValueError("the program returns an array that no operation made: return Tensors")
    graph = Graph(known, tracer.operations, [tracer.values[id(out.data)] for out in outputs],
                  tracer.constants)
    return in_canonical_order(used(graph))


def used(graph: Graph) -> Graph:
    """The graph without the operations and constants that no output depends on."""
    needed, operations = set(graph.outputs), []
    for operation in reversed(graph.operations):
        if operation.result in needed:
            operations.append(operation)
            needed.update(operation.values)
            for value in operation.values:
                value.num_uses += 1
    constants = [value for value in graph.constants if value in needed]
    return Graph(graph.inputs, operations[::-1], graph.outputs, constants)


def in_canonical_order(graph: Graph) -> Graph:
    """The graph with its operations in an order that depends on what they compute.

    Operations are sorted by their depth, then by their name, then by a hash of inputs and options.
    So two programs that build the same graph in different orders are partitioned alike.
    """
    keys: dict[Value, tuple] = {value: (0, name) for name, value in graph.inputs.items()}
    keys |= {value: (0, "constant", str(value.shape)) for value in graph.constants}
    for operation in graph.operations:
        inputs = tuple([keys[x] if isinstance(x, Value) else ("number", repr(x))
                        for x in operation.inputs])
        depth = 1 + max((keys[x][0] for x in operation.values), default=0)
        # nested tuples would grow with the depth: their hash stands for them
        digest = hash_of(inputs, describe(operation.options))
        operation.key = keys[operation.result] = (depth, operation.function.__name__, digest)
    graph.operations.sort(key=lambda operation: operation.key)
    names = list(graph.inputs)
    for operation in graph.operations:
        operation.result.name = unused(kind_of(operation), names)
        names.append(operation.result.name)
    return graph


def kind_of(operation: Operation) -> str:
    """The name of an operation: that of the module whose parameter it uses, or of its Function."""
    used = next((x.name for x in operation.values if x.is_parameter and "." in x.name), None)
    return operation.function.__name__.lower() if used is None else used.rpartition(".")[0]


def unused(name: str, names: Sequence[str]) -> str:
    """`name`, with a number behind it if it is taken."""
    return next(text for text in itertools.chain([name], (f"{name}:{i}" for i in
                                                          itertools.count(1))) if text not in names)


def hash_of(*parts: Any) -> str:
    """A digest of the text of `parts`, the same in every process."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def describe(options: Mapping[str, Any]) -> str:
    """Options as text; an array is only its shape."""
    return ", ".join(f"{name}={getattr(value, 'shape', value)!r}"
                     for name, value in sorted(options.items()))
