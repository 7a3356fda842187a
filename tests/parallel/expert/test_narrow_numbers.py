"""Experts in few bits, and in messages of few bits: one process, but for the rounding of sums."""

import numpy as np
import pytest

from minipar.mixed_precision import precision_preset, set_precision
from minipar.nn import GPT, GPTConfig, MoEConfig
from minipar.number_formats import BFLOAT16
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.parallel.wire_formats.low_precision import LowPrecisionWire
from minipar.parallel.wire_formats.quantized.block_codec import BlockCodec
from minipar.parallel.wire_formats.quantized.quantized_collectives import QuantizedWire
from minipar.testing import worlds
from tests.support.expert_runs import DEEPSEEK, ROWS, batch, on

UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp8": 2.0**-4}
MESHES = [({"ep": 4}, "ddp"), ({"dp": 4, "ep": 2}, "zero1"), ({"dp": 4, "ep": 2}, "fsdp")]


def gradients(comm, make, precision):
    """The loss and all gradients of a batch."""
    model = GPT(GPTConfig(11, 6, 2, 2, 16, experts=MoEConfig(8, width=16, **DEEPSEEK)))
    set_precision(model, precision_preset(precision, model)).initialize(0)
    for block in model.h:                       # scores apart from each other: no close choices
        block.mlp.router.weight.data *= 30
    strategy = make(model, comm)
    ids, targets = batch(0)
    mine = np.array(strategy.rows(ROWS))
    loss = strategy.forward_backward([Microbatch(ids[mine], targets[mine], mine)], 3, 0)
    return loss, strategy.slabs.gradients()


def apart(found, expected):
    """The distance of all gradients, relative to their length."""
    flat = [np.concatenate([g[name].ravel() for name in expected]).astype(np.float64)
            for g in (found, expected)]
    return np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[1])


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("precision", UNIT)
@pytest.mark.parametrize(("sizes", "name"), MESHES)
@pytest.mark.one_in(2)
def test_narrow_numbers(world, precision, sizes, name):
    """Rows of a token are rounded alike on every rank: only sums over ranks are of other orders."""
    def body(comm):
        loss, expected = gradients(comm.split(comm.rank), Strategy, precision)
        ours, found = gradients(comm, on(sizes, name), precision)
        assert ours == pytest.approx(loss, rel=2 * UNIT[precision])
        assert apart(found, expected) < 4 * UNIT[precision]
    world.run(body)


@worlds(4, mpi=())
@pytest.mark.parametrize(("wire", "bound"), [
    (lambda: LowPrecisionWire(BFLOAT16), 2.0**-7), (lambda: QuantizedWire(BlockCodec(8)), 0.03)])
@pytest.mark.one_in(2)
def test_narrow_messages(world, wire, bound):
    """Gradients of experts go through the wire over edp, the others over all of dp."""
    def body(comm):
        _, expected = gradients(comm.split(comm.rank), Strategy, "fp32")
        for sizes, name in MESHES:
            _, found = gradients(comm, on(sizes, name, wire=wire()), "fp32")
            assert 0 < apart(found, expected) < bound, (sizes, name)
    world.run(body)
