"""Random programs with random annotations on random meshes compute what one device computes."""

import math
import random

import numpy as np
import pytest

import minipar.autograd as ag
from minipar import Cluster
from minipar.autograd import Tensor
from minipar.gspmd import P, Plan, constrain, trace
from minipar.gspmd.partitioning.partition import partition
from minipar.gspmd.propagate import propagate

from .cases import largest_error, run_alone

MESHES = [{"a": 2}, {"a": 3}, {"a": 2, "b": 2}, {"a": 2, "b": 3}, {"a": 4, "b": 2}]
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
    "softmax": ag.softmax, "gelu": ag.gelu, "layer_norm": ag.layer_norm,
    "concatenate": lambda x, y: ag.concatenate([x, y], axis=0),
    "slice": lambda x, start, stop: x[start:stop],
    "constrain": constrain,
}


class Program:
    """Random steps (name, operation, operand, …) on inputs of random shapes."""

    def __init__(self, rng: random.Random, mesh: dict[str, int]):
        self.rng, self.mesh = rng, mesh
        self.lengths = [rng.choice([2, 3, 4, 5, 6, 8]) for _ in range(3)]
        self.inputs = {f"x{i}": tuple(rng.choice(self.lengths)
                                      for _ in range(rng.choice([1, 2, 2, 3]))) for i in range(3)}
        self.shapes = dict(self.inputs)
        self.steps: list[tuple] = []
        for _ in range(rng.randint(3, 9)):
            self.add(rng.choice(list(RUN)), rng.choice(list(self.shapes)))

    def add(self, kind: str, x: str) -> None:
        """Append a step on `x`, if there is one of this kind."""
        rng, shape = self.rng, self.shapes[x]
        axis, keep = rng.randrange(len(shape)), rng.random() < 0.5
        kept = tuple([1 if i == axis else n for i, n in enumerate(shape) if keep or i != axis])
        other: list = []
        if kind in ("add", "multiply", "divide"):
            other = [self.pick(lambda s: s == shape[len(shape) - len(s):])]
        elif kind in ("matmul", "linear") and len(shape) > 1:
            other = [self.new((shape[-1], rng.choice(self.lengths)))]
            shape = (*shape[:-1], self.shapes[other[0]][1])
            other += [self.new(shape[-1:])] * (kind == "linear")
        elif kind == "layer_norm":
            other = [self.new(shape[-1:]), self.new(shape[-1:])]
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
            other = [self.pick(lambda s: len(s) == len(shape) and s[1:] == shape[1:])]
            shape = (shape[0] + self.shapes[other[0]][0], *shape[1:])
        elif kind == "slice":
            start = rng.randrange(shape[0])
            other = [start, rng.randint(start + 1, shape[0])]
            shape = (other[1] - start, *shape[1:])
        elif kind == "constrain":
            other = [self.spec(len(shape))]
        elif kind not in ("softmax", "gelu"):
            return
        if math.prod(shape) < 4000:
            name = f"y{len(self.steps)}"
            self.steps.append((name, kind, x, *other))
            self.shapes[name] = shape

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


@pytest.mark.parametrize("seed", [*range(40), *[pytest.param(seed, marks=pytest.mark.slow)
                                                for seed in range(40, 400)]])
def test_a_random_program(seed):
    rng = random.Random(seed)
    mesh = rng.choice(MESHES)
    program = Program(rng, mesh)
    numbers = np.random.default_rng(seed)
    arrays = {name: numbers.standard_normal(shape) / 2 for name, shape in program.inputs.items()}
    annotations = {name: program.spec(len(shape)) for name, shape in program.inputs.items()
                   if rng.random() < 0.6}
    graph = trace(program, *[Tensor(x, requires_grad=True) for x in arrays.values()],
                  names=list(arrays))
    shardings = propagate(graph, mesh, annotations)
    plan = Plan(graph, shardings, partition(graph, shardings))
    expected = run_alone(program, arrays)
    errors, _ = Cluster(math.prod(mesh.values())).run(
        lambda comm: largest_error(comm, mesh, plan, arrays, expected))
    assert max(errors) < 1e-9, (mesh, annotations, program.steps)
