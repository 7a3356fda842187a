"""Lesson 19: the library's GSPMD on a GPT: bytes, conflicts, the picture."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from micro import Tensor as MicroTensor
from micro import backward, part

from minipar import autograd as ag
from minipar.autograd import Tensor
from minipar.backend import Array
from minipar.comm import Communicator
from minipar.comm.collectives import sum_over_ranks
from minipar.comm.mesh import DeviceMesh
from minipar.gspmd import P, plan, shard
from minipar.gspmd.describe import folded, rows
from minipar.nn import GPT, GPTConfig, Module, Parameter
from minipar.viz import draw_sharded_program

from .kept_trace import stop_trace
from .kit import AT_MOST, Lesson, Row

V, T, L, ROWS, SIZE = 32, 8, 2, 4, 8        # SIZE: bytes of a float64; ROWS of the batch for a rank
BATCH = {"ids": P("dp")}
TWO_WEIGHTS = {"h.*.attn.c_attn.weight": P(None, "tp"), "h.*.mlp.c_fc.weight": P(None, "tp")}
FSDP = BATCH | {"h.*.weight": P("dp", priority=1)}      # the batch is propagated first


class Run(NamedTuple):
    """A step of an annotated program: bytes that all ranks sent, and how far it is from alone."""

    forward: int
    backward: int
    off: float


def model(p: int) -> GPT:
    """A GPT whose heads and widths p ranks can share."""
    return GPT(GPTConfig(V, T, L, num_heads=2 * p, width=8 * p))


def loss(model: GPT, ids: Array, targets: Array) -> Tensor:
    """The program: for one device."""
    return model.loss(ids, targets, loss_divisor=float(ids.size))


def batch(p: int) -> np.ndarray:
    """ids and targets, for all ranks."""
    return np.random.default_rng(0).integers(0, V, (2, ROWS * p, T))


def run_gpt(comm: Communicator, sizes: dict[str, int], annotations: dict[str, P]) -> Run:
    """Run the program on the mesh: forward, backward, and the same on this rank alone."""
    ids, targets = batch(comm.size)
    step = shard(loss, ids, targets, model=model(comm.size), mesh=DeviceMesh(comm, **sizes),
                 annotations=annotations, names=["ids", "targets"], dtype=np.float64)
    step.initialize(seed=0, dtype=np.float64)
    comm.start_trace()
    value = step(ids, targets)
    forward = stop_trace(comm).bytes_sent(comm.rank)
    comm.start_trace()
    value.backward()
    backward = stop_trace(comm).bytes_sent(comm.rank)
    alone = model(comm.size).initialize(seed=0, dtype=np.float64)
    expected = loss(alone, ids, targets)
    expected.backward()
    off = [abs(value.item() - expected.item())]
    for name, parameter in alone.named_parameters():
        mine = step.parameters[name]
        off.append(float(np.max(np.abs(mine.grad - mine.local_part(parameter.grad)), initial=0)))
    return Run(int(sum_over_ranks(comm, forward)), int(sum_over_ranks(comm, backward)),
               sum_over_ranks(comm, max(off)))


class TwoProducts(Module):
    """The lesson's program: relu(x w1) w2."""

    def __init__(self, w1: np.ndarray, w2: np.ndarray):
        super().__init__()
        self.w1 = Parameter(w1.shape, lambda draw, shape: w1)
        self.w2 = Parameter(w2.shape, lambda draw, shape: w2)

    def forward(self, x: Array) -> Tensor:
        """x (n, d) → (n, o)."""
        return ag.linear(ag.relu(ag.linear(Tensor(x), self.w1)), self.w2)


def half_squares(model: Module, x: Array) -> Tensor:
    """The lesson's loss."""
    y = model(x)
    return (y * y).sum() * 0.5


def whole_tensors(p: int) -> dict[str, np.ndarray]:
    """x, w1 and w2, the same on every rank."""
    draw = np.random.default_rng(1)
    return {"x": draw.random((3 * p, 4 * p)), "w1": draw.normal(size=(4 * p, 2 * p)),
            "w2": draw.normal(size=(2 * p, p))}


ANNOTATIONS = ({"x": 0}, {"w1": 1}, {"x": 0, "w1": 0, "w2": 0})     # of the lesson's program


def own_results(comm: Communicator, program: list, propagate: Callable, run: Callable,
                annotations: dict[str, int]) -> list[np.ndarray]:
    """Loss, and this rank's gradients of w1 and w2, by the lesson's functions."""
    cut, whole = propagate(program, annotations), whole_tensors(comm.size)
    pieces = {name: MicroTensor(part(comm, array, cut[name]) if name in cut else array)
              for name, array in whole.items()}
    loss = run(comm, program, cut, pieces)
    backward(loss)
    return [loss.data, pieces["w1"].grad, pieces["w2"].grad]


def spec(dim: int) -> P:
    """That this dimension of two is cut."""
    return P(*["ranks" if i == dim else None for i in range(2)])


def library_results(comm: Communicator, annotations: dict[str, int]) -> list[np.ndarray]:
    """The same by the library's."""
    whole = whole_tensors(comm.size)
    step = shard(half_squares, whole["x"], model=TwoProducts(whole["w1"], whole["w2"]),
                 mesh=DeviceMesh(comm, order=["ranks"], ranks=comm.size), names=["x"],
                 annotations={name: spec(dim) for name, dim in annotations.items()},
                 dtype=np.float64)
    step.initialize(dtype=np.float64)
    loss = step(whole["x"])
    loss.backward()
    return [loss.data, step.parameters["w1"].grad, step.parameters["w2"].grad]


def compare_with_library(lesson: Lesson, program: list, propagate: Callable, run: Callable) -> None:
    """Compare with the library's on the lesson's program, and annotate a GPT."""
    for annotations in ANNOTATIONS:
        for mine, its in zip(own_results(lesson.comm, program, propagate, run, annotations),
                             library_results(lesson.comm, annotations), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-12, atol=1e-12)
    lesson.say("The library traces a program that is written as for one device. On this one its "
               "loss and gradients equal the lesson's. Now a GPT, on the same three kinds of "
               "annotations:")
    compare_bytes(lesson)
    lesson.say("No program says all-reduce. An operation that differs along an axis uses a whole "
               "operand through a *copy*, whose gradient is summed: that is DDP on a weight and "
               "Megatron's *f* on an activation. A cut inner dimension leaves partial sums, which "
               "are summed: Megatron's *g*. A weight that is needed whole is gathered, and its "
               "gradient scattered: FSDP.")
    conflicts(lesson)
    draw(lesson)


def compare_bytes(lesson: Lesson) -> None:
    """Compare the bytes of the three annotated programs with DDP, Megatron and FSDP by hand."""
    comm, p = lesson.comm, lesson.comm.size
    whole, n = model(p).num_parameters(), ROWS * p * T * 8 * p      # n: one activation (b, t, d)
    in_blocks = sum(parameter.size for name, parameter in model(p).named_parameters()
                    if name.startswith("h.") and name.endswith("weight"))
    other = whole - in_blocks
    ddp, megatron, fsdp = (run_gpt(comm, {axis: p}, annotations) for axis, annotations in
                           (("dp", BATCH), ("tp", TWO_WEIGHTS), ("dp", FSDP)))
    of_loss = 2 * (p - 1) * SIZE                # the sum of the ranks' losses: one number
    ring = (p - 1) * SIZE                       # a ring's all-reduce of n sends 2 (p-1) n in all
    lesson.table([
        Row("batch: forward", of_loss, ddp.forward, "B"),
        Row("batch: backward, 2 (p-1) Ψ", 2 * ring * whole, ddp.backward, "B"),
        Row("two weights a block: forward, 2 all-reduces", 2 * L * 2 * ring * n,
            megatron.forward, "B"),
        Row("two weights a block: backward, 2 all-reduces", 2 * L * 2 * ring * n,
            megatron.backward, "B"),
        Row("weights of blocks over dp: forward, gathered", ring * in_blocks + of_loss,
            fsdp.forward, "B"),
        Row("weights of blocks over dp: backward, scattered", ring * (in_blocks + 2 * other),
            fsdp.backward, "B")], f"{p} ranks, all bytes of a step")
    lesson.counts([Row(f"{name}: off by", 1e-10, run.off, rule=AT_MOST) for name, run in (
        ("batch", ddp), ("two weights a block", megatron), ("weights over dp", fsdp))],
        "loss and gradients of one process")


def conflicts(lesson: Lesson) -> None:
    """Print who wins where the batch and the weights want the same axis."""
    ids, targets = batch(4)
    found = plan(loss, ids, targets, model=model(4), annotations=FSDP, mesh={"dp": 4},
                 names=["ids", "targets"]).shardings.conflicts
    lesson.say("With FSDP's annotations the batch and the weights want the same axis in every "
               "product. The table says which keeps it; the other is gathered.")
    lesson.grid(["at", "value", "dp is kept by", "not by", "since"],
                [(each.operation, each.value, each.won, each.lost, each.reason)
                 for each in found if each.operation.startswith("h.0.mlp")])


def draw(lesson: Lesson) -> None:
    """Draw a program on a mesh of eight ranks: its annotations, and what follows from them."""
    (ids, targets), mesh = batch(8), {"dp": 2, "tp": 4}
    drawn = plan(loss, ids, targets, model=model(8), annotations=BATCH | TWO_WEIGHTS, mesh=mesh,
                 names=["ids", "targets"])
    lesson.picture(lambda path: draw_sharded_program(
        path, folded(rows(drawn.program)), mesh,
        "Three annotations (ids, c_attn, c_fc), and what follows from them on dp 2 × tp 4"))
