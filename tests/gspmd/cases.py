"""The cases of expected.json, and how to run one of them on simulated ranks."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minipar.autograd import Function, Tensor
from minipar.comm import Communicator
from minipar.comm.mesh import DeviceMesh
from minipar.gspmd import P, ShardingPlan
from minipar.gspmd.execution.execute import Executable
from minipar.gspmd.graph import trace
from minipar.gspmd.partitioning.partition import partition
from minipar.gspmd.propagate import propagate

from .programs import PROGRAMS


def dims(spec: list | None) -> tuple | None:
    return None if spec is None else tuple(
        [() if each is None else (each,) if isinstance(each, str) else tuple(each)
         for each in spec])


class Case(NamedTuple):
    name: str
    mesh: dict[str, int]
    inputs: list
    outputs: list
    num_bytes: float

    @property
    def program(self):
        return PROGRAMS[self.name]

    @property
    def is_gradient(self) -> bool:
        return "gradient" in self.name

    def arrays(self, dtype: Any = np.float64) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)
        inputs = self.inputs[:2] if self.name.startswith("embedding") else self.inputs
        return {name: rng.integers(0, 8, shape) if kind == "int"
                else rng.standard_normal(shape).astype(dtype)
                for name, shape, kind, _, _ in inputs}

    def plan(self, dtype: Any = np.float64) -> ShardingPlan:
        arrays = self.arrays(dtype)
        annotations = {name: P(*dims(spec)) for name, _, _, spec, _ in self.inputs
                       if spec is not None and name in arrays}
        graph = trace(self.program, *as_leaves(arrays), names=list(arrays))
        shardings = propagate(graph, self.mesh, annotations)
        return ShardingPlan(graph, shardings, partition(graph, shardings))


def as_leaves(arrays: dict[str, np.ndarray]) -> list:
    return [Tensor(x, requires_grad=True) if x.dtype.kind == "f" else x for x in arrays.values()]


CASES = [Case(*case.values()) for case in
         json.loads((Path(__file__).parent / "expected.json").read_text())["cases"]]
BY_NAME = {case.name: case for case in CASES}


class Seed(Function):
    """Starts backward with a given gradient of each output."""

    metered = False

    @staticmethod
    def forward(ctx, *outputs, grads):
        ctx.grads = grads
        return np.zeros(())

    @staticmethod
    def backward(ctx, g):
        return ctx.grads


def run_alone(program, arrays: dict, seed: int = 1) -> tuple[list, list, dict]:
    """Outputs, the gradients to start from, and the gradients of the inputs, on one device."""
    rng = np.random.default_rng(seed)
    tensors = as_leaves(arrays)
    result = program(*tensors)
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    grads = [rng.standard_normal(out.shape) for out in outputs]
    Seed.apply(*outputs, grads=grads).backward()
    return ([out.data for out in outputs], grads,
            {name: x.grad for name, x in zip(arrays, tensors) if isinstance(x, Tensor)})


def largest_error(comm: Communicator, mesh: dict, plan: ShardingPlan, arrays: dict,
                  expected) -> float:
    """The largest difference of a rank's pieces of outputs and gradients from one device's."""
    outputs, grads, input_grads = expected
    rank = Executable(plan.program, DeviceMesh(comm, order=tuple(mesh), **mesh))
    pieces = {name: Tensor(np.array(rank.piece_of(plan.program.inputs[name], x)),
                           requires_grad=x.dtype.kind == "f") for name, x in arrays.items()}
    results = rank(pieces)
    wanted = [rank.piece_of(local, x) for local, x in zip(plan.program.outputs, outputs)]
    errors = [np.abs(a.data - b) for a, b in zip(results, wanted, strict=True)]
    Seed.apply(*results, grads=[rank.piece_of(local, g) for local, g in
                                zip(plan.program.outputs, grads)]).backward()
    for name, grad in input_grads.items():
        own = pieces[name].grad
        if own is None:
            own = np.zeros(pieces[name].shape)
        wanted_grad = 0 if grad is None else rank.piece_of(plan.program.inputs[name], grad)
        errors.append(np.abs(own - wanted_grad))
    return max(float(np.max(e, initial=0)) for e in errors)
