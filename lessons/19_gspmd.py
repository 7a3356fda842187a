"""Lesson 19. GSPMD: what follows when you say how a few tensors are cut?

The model below knows nothing of ranks.  We annotate some of its tensors with the mesh axes that cut
their dimensions, and three steps do the rest:

    trace       run the loss once without numbers; note each operation
    propagate   y = x w: if x is (dp, ·) and w is (·, tp), then y is (dp, tp); back and forth,
                until nothing changes
    partition   each rank computes on its pieces.  Where a sum was cut, its parts are summed; where
                an operand is needed otherwise, it is resharded by the cheapest collective

One annotation gives data parallelism, two weights a block give Megatron's tensor parallelism,
weights over dp give FSDP: the same collectives as by hand, and none of them is written down.
Xu et al. 2021 (GSPMD); propagation in the order of OpenXLA's Shardy.

    python lessons/19_gspmd.py --ranks 4        mpirun -n 4 python lessons/19_gspmd.py
"""

from typing import NamedTuple

import numpy as np
from support.kept_trace import stop_trace
from support.kit import AT_MOST, Lesson, Row

from minipar.autograd import Tensor
from minipar.backend import Array
from minipar.comm import Communicator
from minipar.comm.collectives import sum_over_ranks
from minipar.comm.mesh import DeviceMesh
from minipar.gspmd import P, plan, shard
from minipar.gspmd.describe import folded, rows
from minipar.launcher import launch
from minipar.nn import GPT, GPTConfig
from minipar.viz import draw_sharded_program

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


def run(comm: Communicator, sizes: dict[str, int], annotations: dict[str, P]) -> Run:
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


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    compare_bytes(lesson)
    lesson.say("No program says all-reduce. An operation that differs along an axis uses a whole "
               "operand through a *copy*, whose gradient is summed: that is DDP on a weight and "
               "Megatron's *f* on an activation. A cut inner dimension leaves partial sums, which "
               "are summed: Megatron's *g*. A weight that is needed whole is gathered, and its "
               "gradient scattered: FSDP.")
    conflicts(lesson)
    draw(lesson)
    lesson.takeaway("A sharding is a property of dimensions that operations share. Say it for a "
                    "few tensors, and the collectives follow.")
    lesson.exercises(questions=[
        "x (dp, ·) w (dp, ·): both operands of a product want dp, on different factors. Which "
        "three things could a rank compute, and what does each cost?",
        "Annotate ids with (None, cp) instead of (dp, None): time is cut, and attention needs it "
        "whole. Which collectives does `minipar shard` show, and whose method is that?",
        "In FSDP above the weights have priority=1. What would be gathered if they came first?"])


def compare_bytes(lesson: Lesson) -> None:
    """Compare the bytes of the three annotated programs with DDP, Megatron and FSDP by hand."""
    comm, p = lesson.comm, lesson.comm.size
    whole, n = model(p).num_parameters(), ROWS * p * T * 8 * p      # n: one activation (b, t, d)
    in_blocks = sum(parameter.size for name, parameter in model(p).named_parameters()
                    if name.startswith("h.") and name.endswith("weight"))
    other = whole - in_blocks
    ddp, megatron, fsdp = (run(comm, {axis: p}, annotations) for axis, annotations in
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
            fsdp.backward, "B"),
        Row("loss and gradients: off by", 1e-10, max(ddp.off, megatron.off, fsdp.off),
            rule=AT_MOST)], f"{p} ranks, all bytes of a step")


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


if __name__ == "__main__":
    launch(main)
