"""Random programs with random annotations, on random meshes; and what one run of them sends."""

import math
import random

import numpy as np

import minipar.autograd as ag
from minipar import Cluster
from minipar.autograd import Tensor
from minipar.autograd.ops.attention import attention_by_autograd
from minipar.comm.mesh import DeviceMesh
from minipar.gspmd import P, ShardingPlan, constrain, trace
from minipar.gspmd.execution.execute import Executable
from minipar.gspmd.partitioning.partition import partition
from minipar.gspmd.propagate import propagate

from .cases import Seed, run_alone

MESHES = [{"a": 2}, {"a": 3}, {"a": 2, "b": 2}, {"b": 3, "a": 2}, {"a": 2, "b": 3}]


def attention(x, heads):
    """x (…, heads · d) as queries, keys and values, one sample of heads."""
    rows = x.reshape(1, -1 if x.ndim > 1 else 1, heads, x.shape[-1] // heads)
    y = rows.transpose(0, 2, 1, 3)
    return attention_by_autograd(y, y, y).transpose(0, 2, 1, 3).reshape(
        *x.shape)


def fused_attention(x, heads, kv_heads):
    """x (b, t, (heads + 2 kv heads) d) → (b, t, heads d)."""
    return ag.fused_attention(x, heads, kv_heads)


def rotary(x, width, num_heads):
    angles = np.arange(x.shape[1] * width // 2, dtype=float).reshape(1, x.shape[1], width // 2)
    return ag.rotary(x, np.cos(angles), np.sin(angles), num_heads)


RUN = {
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / (y * y + 1.0),
    "matmul": lambda x, y: x @ y,
    "linear": ag.linear,
    "transpose": lambda x, axes: x.transpose(*axes),
    "reshape": lambda x, shape: x.reshape(*shape),
    "sum": lambda x, axis, keepdims: x.sum(axis=axis, keepdims=keepdims),
    "max": lambda x, axis, keepdims: x.max(axis=axis, keepdims=keepdims),
    "softmax": ag.softmax, "gelu": ag.gelu, "layer_norm": ag.layer_norm, "rms_norm": ag.rms_norm,
    "concatenate": lambda x, y, axis: ag.concatenate([x, y], axis=axis),
    "slice": lambda x, index: x[index],
    "attention": attention, "fused_attention": fused_attention, "rotary": rotary,
    "cross_entropy": lambda x, ids: ag.cross_entropy(x, ids, 2.0),
    "constrain": constrain,
}


class Program:
    """Random steps (name, operation, operand, …) on inputs of random shapes."""

    def __init__(self, rng: random.Random, mesh: dict[str, int]):
        self.rng, self.mesh = rng, mesh
        self.lengths = [rng.choice([1, 2, 3, 4, 5, 6, 8, 12]) for _ in range(3)]
        self.inputs = {f"x{i}": tuple(rng.choice(self.lengths)
                                      for _ in range(rng.choice([1, 2, 2, 3]))) for i in range(3)}
        self.shapes = dict(self.inputs)
        self.steps: list[tuple] = []
        for _ in range(rng.randint(3, 9)):
            self.add(rng.choice(list(RUN)), rng.choice(list(self.shapes)))

    def add(self, kind: str, x: str) -> None:
        """Append a step on `x`, if there is one of this kind."""
        rng, shape = self.rng, self.shapes[x]
        if not shape:
            return
        axis, keep = rng.randrange(len(shape)), rng.random() < 0.5
        kept = tuple([1 if i == axis else n for i, n in enumerate(shape) if keep or i != axis])
        other: list = []
        if kind in ("add", "multiply", "divide"):
            other = [self.pick(lambda s: s and s == shape[len(shape) - len(s):])]
        elif kind in ("matmul", "linear") and len(shape) > 1:
            other = [self.new((shape[-1], rng.choice(self.lengths)))]
            shape = (*shape[:-1], self.shapes[other[0]][1])
            other += [self.new(shape[-1:])] * (kind == "linear")
        elif kind == "layer_norm":
            other = [self.new(shape[-1:]), self.new(shape[-1:])]
        elif kind == "rms_norm":
            other = [self.new(shape[-1:])]
        elif kind == "transpose":
            other = [tuple(rng.sample(range(len(shape)), len(shape)))]
            shape = tuple([shape[i] for i in other[0]])
        elif kind == "reshape":
            size = math.prod(shape)
            rows = rng.choice([n for n in range(1, size + 1) if size % n == 0])
            shape = rng.choice([(size,), (rows, size // rows)])
            other = [shape]
        elif kind in ("sum", "max") and kept:
            other, shape = [axis, keep], kept
        elif kind == "concatenate":
            other = [self.pick(lambda s: len(s) == len(shape) and all(
                n == m or i == axis for i, (n, m) in enumerate(zip(s, shape)))), axis]
            shape = tuple([n + (i == axis) * self.shapes[other[0]][i]
                           for i, n in enumerate(shape)])
        elif kind == "slice":
            start = rng.randrange(shape[axis])
            stop = rng.randint(start + 1, shape[axis])
            other = [(*[slice(None)] * axis, slice(start, stop))]
            shape = tuple([stop - start if i == axis else n for i, n in enumerate(shape)])
        elif kind == "attention":
            other = [rng.choice([n for n in range(1, shape[-1] + 1) if shape[-1] % n == 0])]
        elif kind in ("fused_attention", "rotary"):
            other, shape = self.heads(kind, shape)
            if not other:
                return
        elif kind == "cross_entropy" and len(shape) > 1:
            other = [np.arange(math.prod(shape[:-1])).reshape(shape[:-1]) % shape[-1]]
            shape = ()
        elif kind == "constrain":
            other = [self.spec(len(shape))]
        elif kind not in ("softmax", "gelu"):
            return
        if math.prod(shape) < 4000:
            name = f"y{len(self.steps)}"
            self.steps.append((name, kind, x, *other))
            self.shapes[name] = shape

    def heads(self, kind: str, shape: tuple[int, ...]) -> tuple[list, tuple[int, ...]]:
        """Heads that fit a shape (b, t, width), and the result's shape; none for other shapes."""
        width = shape[-1]
        if len(shape) != 3:
            return [], shape
        if kind == "rotary":
            fits = [(d, n) for d in range(2, width + 1, 2) if width % d == 0
                    for n in range(1, width // d + 1)]
            return list(self.rng.choice(fits)) if fits else [], shape
        pairs = [(h, kv) for kv in range(1, width) for h in range(kv, width, kv)
                 if width % (h + 2 * kv) == 0]
        if not pairs:
            return [], shape
        heads, kv_heads = self.rng.choice(pairs)
        return [heads, kv_heads], (*shape[:2], width // (heads + 2 * kv_heads) * heads)

    def pick(self, fits) -> str:
        return self.rng.choice([name for name, shape in self.shapes.items() if fits(shape)])

    def new(self, shape: tuple[int, ...]) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.shapes[name] = shape
        return name

    def spec(self, num_dims: int) -> P:
        entries: list[tuple] = [()] * num_dims
        for axis in self.rng.sample(list(self.mesh), len(self.mesh)):
            if self.rng.random() < 0.55:
                dim = self.rng.randrange(num_dims)
                entries[dim] = (*entries[dim], axis)
        return P(*[entry or None for entry in entries], priority=self.rng.choice([0, 0, 1]))

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values = dict(zip(self.inputs, inputs))
        for name, kind, *operands in self.steps:
            values[name] = RUN[kind](*[values[x] if isinstance(x, str) else x for x in operands])
        return tuple([values[name] for name, *_ in self.steps[-2:]])

    def __repr__(self) -> str:
        return f"{self.inputs} on {self.mesh}: {self.steps}"


def random_case(seed: int) -> tuple[Program, dict[str, np.ndarray], ShardingPlan]:
    """A program of at least one step, its inputs, and its plan for random annotations."""
    rng = random.Random(seed)
    mesh, steps = rng.choice(MESHES), []
    while not steps:
        program = Program(rng, mesh)
        steps = program.steps
    numbers = np.random.default_rng(seed)
    arrays = {name: numbers.standard_normal(shape) / 2 for name, shape in program.inputs.items()}
    annotations = {name: program.spec(len(shape)) for name, shape in program.inputs.items()
                   if rng.random() < 0.6}
    graph = trace(program, *[Tensor(x, requires_grad=True) for x in arrays.values()],
                  names=list(arrays))
    shardings = propagate(graph, mesh, annotations)
    return program, arrays, ShardingPlan(graph, shardings, partition(graph, shardings))


def check(mesh: dict[str, int], planned: ShardingPlan, program, arrays: dict, what: object) -> None:
    """Outputs and gradients are those of one device; all bytes that are sent are planned."""
    outputs, grads, input_grads = run_alone(program, arrays)
    local = planned.program

    def body(comm):
        rank = Executable(local, DeviceMesh(comm, order=tuple(mesh), **mesh))
        pieces = {name: Tensor(np.array(rank.piece_of(local.inputs[name], x)),
                               requires_grad=x.dtype.kind == "f") for name, x in arrays.items()}
        comm.start_trace()
        results = rank(pieces)
        forward = comm.stop_trace().bytes_sent(comm.rank)
        pairs = [(made.data, rank.piece_of(at, whole)) for made, at, whole in
                 zip(results, local.outputs, outputs, strict=True)]
        comm.start_trace()
        Seed.apply(*results, grads=[np.array(rank.piece_of(at, g)) for at, g in
                                    zip(local.outputs, grads)]).backward()
        backward = comm.stop_trace().bytes_sent(comm.rank)
        pairs += [(0.0 if pieces[name].grad is None else pieces[name].grad,
                   0.0 if grad is None else rank.piece_of(local.inputs[name], grad))
                  for name, grad in input_grads.items()]
        error = max(float(np.max(np.abs(a - b), initial=0)) for a, b in pairs)
        shapes = all(np.shape(a) == np.shape(b) for a, b in pairs[:len(results)])
        return forward, backward, error if shapes else math.inf

    sent = np.array(Cluster(math.prod(mesh.values())).run(body)[0])
    assert sent[:, 2].max() < 1e-9, (what, sent)
    assert abs(sent[:, 0].mean() - local.num_bytes) < 1e-6, ("forward", what, sent, local.num_bytes)
    assert abs(sent[:, 1].mean() - local.gradient_bytes) < 1e-6, (
        "backward", what, sent, local.gradient_bytes)
