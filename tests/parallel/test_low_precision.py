"""Narrow messages along every axis: their bytes, and how far from one process results are."""

from functools import partial

import numpy as np
import pytest

from minipar.autograd.engine import backward_order
from minipar.autograd.ops.rounding import Round
from minipar.autograd.tensor import Node
from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.comm.mesh import DeviceMesh
from minipar.number_formats import BFLOAT16, FLOAT16
from minipar.parallel.compare_ranks import ranks_that_differ
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Strategy
from minipar.parallel.wire_formats.low_precision import LowPrecisionWire
from minipar.testing import worlds
from tests.support.low_precision_runs import (
    ROWS,
    UNIT,
    alone,
    batch,
    build,
    one_step,
    same_bits,
    train,
)


@worlds(2, 3, mpi=(3,))
@pytest.mark.one_in(2)
def test_fsdp_gathers_weights_in_two_bytes_without_a_difference(world):
    """Every use rounds them in any case: rounding before the message changes no bit."""
    def body(comm):
        found, sent = [], []
        for options in ({}, {"gather_wire": LowPrecisionWire(BFLOAT16)}):
            comm.start_trace()
            found.append(train(comm, "gpt", "bf16", partial(make_strategy, "fsdp"), 1,
                               **options))
            sent.append(comm.stop_trace().bytes_sent(comm.rank, "all_gather"))
        same_bits(*found)
        assert sent[0] == 2 * sent[1] > 0
    world.run(body)


@worlds(3, 4, mpi=(4,))
@pytest.mark.parametrize("name", ["ddp", "zero3", "fsdp", "dp 2 × tp 2 zero1", *(
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("zero1", "zero2", "hsdp", "dp 2 × tp 2 fsdp", "pp 2 × dp 2 fsdp"))])
@pytest.mark.one_in(2)
def test_gradients_are_reduced_in_a_chosen_format(world, name):
    """Half the bytes; p roundings of each number; the same bits on every rank."""
    if (name == "hsdp" or "×" in name) and world.size != 4:
        pytest.skip("needs four ranks")

    def make(model, comm, **options):
        if name == "hsdp":
            return make_strategy("fsdp", model, comm, hybrid_shard=2, **options)
        if "×" in name:
            other = {"tp": 2} if "tp" in name else {"pp": 2}
            return make_strategy(name.split()[-1], model, DeviceMesh(comm, dp=2, **other),
                                 **options)
        return make_strategy(name, model, comm, **options)

    def body(comm):
        found, sent = [], []
        for options in ({}, {"wire": LowPrecisionWire(BFLOAT16)}):
            comm.start_trace()
            found.append(one_step(comm, "tied", "fp32", make, **options))
            sent.append(comm.stop_trace())
        wide, narrow = found
        for key, gradient in wide.items():
            error = np.abs(narrow[key] - gradient).max()
            assert error <= 4 * ((1 + 2.0**-8)**(comm.size + 1) - 1) * np.abs(gradient).max(), key
        assert any((narrow[key] != wide[key]).any() for key in wide)
        assert not ranks_that_differ(comm, b"".join(g.tobytes() for g in narrow.values()))
        if name == "ddp":       # one bucket; without a format the algorithm follows from the size
            n = sum(gradient.size for gradient in wide.values())
            chunks = [stop - start for start, stop in chunk_bounds(n, comm.size)]
            left_out = chunks[comm.rank] + chunks[(comm.rank + 1) % comm.size]
            assert sent[1].bytes_sent(comm.rank, "all_reduce") == 2 * (2 * n - left_out)
        elif "×" not in name:
            wide, narrow = (t.bytes_sent(comm.rank, "reduce_scatter") for t in sent)
            assert wide == 2 * narrow > 0
    world.run(body)


def test_what_no_strategy_can_do_is_refused():
    wire = LowPrecisionWire(BFLOAT16)

    def body(comm):
        with pytest.raises(ValueError, match="DataParallel sends no gradients by a wire"):
            make_strategy("dp", build("mlp", "fp32"), comm, wire=wire)
        with pytest.raises(ValueError, match="gather_wire goes with zero3 or fsdp, not with ddp"):
            make_strategy("ddp", build("mlp", "fp32"), comm, gather_wire=wire)
    Cluster(2).run(body)


def roundings(model, precision):
    """The number of operations of the longest way from a weight to the loss round their result."""
    loss = build(model, precision).loss(*batch(model, 0, np.arange(ROWS))[:2])
    depth = {}
    for target in reversed([*backward_order(loss.grad_target)]):
        below = max((depth[e] for e in getattr(target, "inputs", None) or () if e is not None),
                    default=0)
        depth[target] = below + (isinstance(target, Node) and target.function is Round)
    return depth[loss.grad_target]


@worlds(2, mpi=(2, 4))
@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("sequence", [False, True], ids=["plain", "sequence"])
@pytest.mark.parametrize("wire", [False, True], ids=["wide", "narrow"])
@pytest.mark.one_in(2)
def test_tensor_parallel_is_one_process_to_the_roundings(world, wire, sequence, precision):
    """Partial sums are rounded, which one process never has.

    A rounding is a relative error of at most u, of either sign.  A gradient has come through n of
    them forwards and n backwards at most, which add up like a random walk: ‖Δg‖ is about
    √(2n) u ‖g‖ for each of the two ways to compute it, 2 √n u for their difference.  The bound is
    twice that.
    """
    bound = 4 * roundings("tied", precision)**0.5 * UNIT[precision]

    def make(model, comm):
        fmt = FLOAT16 if precision == "fp16" else BFLOAT16
        mesh = DeviceMesh(comm, tp=comm.size // (comm.size // 2), dp=comm.size // 2)
        return make_strategy("ddp", model, mesh, sequence_parallel=sequence,
                             activation_format=fmt if wire else None)

    def body(comm):
        found = one_step(comm, "tied", precision, make)
        expected = one_step(comm.split(comm.rank), "tied", precision, Strategy)
        ours, theirs = (np.concatenate([a[name].ravel() for name in expected])
                        for a in (found, expected))
        distance = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        assert 0 < distance < bound
    world.run(body)


@pytest.mark.slow
@worlds(8, mpi=())
@pytest.mark.parametrize("data_parallel", ["ddp", "zero1", "fsdp"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_three_axes_are_one_process_to_the_roundings(world, precision, data_parallel):
    """Everything at once: narrow messages along every axis, a schedule of several microbatches."""
    bound = 4 * roundings("gpt", precision)**0.5 * UNIT[precision]
    fmt = FLOAT16 if precision == "fp16" else BFLOAT16
    wires = {"wire": LowPrecisionWire(fmt), "activation_format": fmt}
    if data_parallel == "fsdp":
        wires["gather_wire"] = LowPrecisionWire(fmt)

    def make(model, comm):
        return make_strategy(data_parallel, model, DeviceMesh(comm, pp=2, dp=2, tp=2), **wires)

    def body(comm):
        found = train(comm, "gpt", precision, make, 4)
        expected = alone("gpt", precision, parts=4)
        for key in expected:
            distance = np.linalg.norm(found[key] - expected[key]) / np.linalg.norm(expected[key])
            assert distance < bound, key
        assert not ranks_that_differ(comm, b"".join(
            value.tobytes() for key, value in found.items() if not key.startswith("loss")))
    world.run(body)
