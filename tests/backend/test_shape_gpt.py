"""The very same GPT on arrays without numbers: what a run costs, at any size, exactly."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from minipar.autograd import Meter, Tensor, no_grad
from minipar.autograd.ops.attention import QUERIES
from minipar.backend.shape_array import Memory, ShapeArray
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, MLP, GPTConfig, Linear
from minipar.nn.gpt import Block
from minipar.nn.step_context import training_step
from minipar.optim import SGD, AdamW, clip_grad_norm

SMALL = GPTConfig(vocab_size=11, context=8, num_layers=2, num_heads=4, width=16)
GPT3 = GPTConfig(vocab_size=50257, context=2048, num_layers=96, num_heads=96, width=12288)


def train(model, ids, make_optimizer=AdamW, num_steps=2):
    """Whole steps of training; what every operation counted and what was saved."""
    ledger, optimizer = Ledger(model.parameters()), make_optimizer(model.slabs)
    with Meter().running() as meter:
        for step in range(num_steps):
            optimizer.zero_grad()
            with training_step(0, step, range(ids.shape[0])), ledger.recording():
                loss = model.loss(ids, ids, loss_divisor=float(ids.size))
            live = ledger.live
            loss.backward()
            clip_grad_norm(model.slabs, 1.0)
            optimizer.step()
    return {"loss": (loss.shape, loss.dtype), "saved": live, "peak": ledger.peak,
            "left": ledger.live, "flops": meter.flops, "bytes": meter.bytes, "calls": meter.calls,
            "gradients": [(p.grad.shape, p.grad.dtype) for p in model.parameters()],
            "states": [(name, v.shape, v.dtype) for state in optimizer.states
                       for name, v in state.items()]}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("changes", [
    {}, {"tied": False}, {"num_kv_heads": 2}, {"num_kv_heads": 1, "dropout": 0.2},
    {"num_layers": 1, "num_heads": 1}])
@pytest.mark.parametrize("make_optimizer", [AdamW, lambda s: SGD(s, momentum=0.9, nesterov=True)])
def test_a_shape_only_run_counts_what_a_real_run_counts(dtype, changes, make_optimizer):
    config = replace(SMALL, **changes)
    ids = np.random.default_rng(0).integers(0, 11, (3, 7))
    real = train(GPT(config).initialize(0, dtype), ids, make_optimizer)
    shapes = GPT(config).initialize(0, dtype, array=ShapeArray((), dtype))
    assert train(shapes, ShapeArray(ids.shape, ids.dtype), make_optimizer) == real
    assert real["saved"] == real["peak"] > 0 and real["left"] == 0
    assert real["flops"]["Linear", "forward"] > 0 and real["calls"]["Embedding", "weights"] == 2
    assert all(isinstance(p.grad, ShapeArray) for p in shapes.parameters())


def test_a_model_without_numbers_runs():
    model = GPT(SMALL).initialize(array=ShapeArray((), np.float32))
    ids = ShapeArray((2, 5), np.int64)
    loss = model.loss(ids, ids, 10.0)
    assert loss.shape == () and loss.dtype == np.float32
    loss.backward()
    assert all(p.grad.shape == p.shape for p in model.parameters())
    with no_grad():
        assert model(np.zeros((2, 5), int)).shape == (2, 5, 11)     # host ids will do
    with pytest.raises(TypeError, match="has no numbers"):
        model.loss(ids, ids)                # counting the targets would need theirs
    with pytest.raises(TypeError, match="has no numbers"):
        loss.item()


def test_a_model_that_is_only_built_says_what_it_lacks():
    row, ids = np.ones((1, 3), np.float32), np.zeros((2, 5), int)
    for run in (lambda: GPT(SMALL)(ids), lambda: MLP([3, 2]).logits(row),
                lambda: np.asarray(Linear(2, 2).weight.data), lambda: GPT(SMALL).wte.weight * 2.0):
        with pytest.raises(TypeError, match="has a shape but no numbers here: call model.init"):
            run()


def test_live_memory_of_a_shape_only_run_is_that_of_a_real_run():
    """All memory, not only what is saved: NumPy's own count of a real run, within a tenth."""
    config = replace(SMALL, width=64, context=64, vocab_size=96)
    ids = np.random.default_rng(0).integers(0, 96, (4, 64))

    def run(model, ids):
        model.loss(ids, ids, float(ids.size)).backward()

    real = GPT(config).initialize()
    run(real, ids)                                          # warm
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run(real, ids)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    memory = Memory()
    shapes = GPT(config).initialize(array=ShapeArray((), np.float32, memory))
    shape_ids = ShapeArray(ids.shape, ids.dtype, memory)
    before = memory.live
    memory.peak = before
    run(shapes, shape_ids)
    assert memory.live == before                            # all of it was given back
    assert abs((memory.peak - before) / peak - 1) < 0.1


@pytest.mark.parametrize("batch, time, width, heads, dtype", [
    (1, 2048, 12288, 96, np.float32),                       # a block of GPT-3 175B
    (4, 2048, 12288, 96, np.float16), (2, 1024, 4096, 32, np.float32)])
def test_a_block_of_175_billion_parameters_costs_what_the_formula_says(batch, time, width, heads,
                                                                       dtype):
    """72 b t d² (1 + t / 6d) FLOPs of products, forward and backward, says Narayanan et al. 2021,
    equation 2, for one layer without recomputation.  What runs is less, as most of the masked half
    of attention's t² pairs is skipped: 72 b t d² + 12 b d pairs.

    Saved: 16 b t d + 2 b t, and h b probabilities for each pair of a query and a key that its
    block of queries may see.
    """
    block = Block(GPTConfig(1, time, 96, heads, width)).initialize(
        dtype=dtype, array=ShapeArray((), dtype))
    x = Tensor(ShapeArray((batch, time, width), dtype), requires_grad=True)
    ledger = Ledger([*block.parameters(), x])
    tracemalloc.start()
    try:
        with Meter().running() as meter, ledger.recording():
            y = block(x)
            saved = ledger.live
            y.backward(ShapeArray(y.shape, dtype))
        host_peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    b, t, d = batch, time, width
    ends = range(QUERIES, t + 1, QUERIES)
    pairs = sum(QUERIES * end for end in ends)
    assert t**2 / 2 < pairs < 0.54 * t**2
    biases = 2 * b * t * 9 * d                              # added forward, summed up backward
    assert meter.total_flops(names=("Linear",)) == 72 * b * t * d**2 + biases
    softmax = 10 * b * heads * pairs                        # 5 forward, 5 backward
    blocks = b * (heads * t * QUERIES + t * d + 2 * d * (sum(ends) - t))    # mask, scale, sums
    assert meter.total_flops(names=("FusedAttention",)) == 12 * b * d * pairs + softmax + blocks
    assert saved == (16 * b * t * d + heads * b * pairs + 2 * b * t) * np.dtype(dtype).itemsize
    assert block.num_parameters() == 12 * d**2 + 13 * d
    assert [p.grad.shape for p in block.parameters()] == [p.shape for p in block.parameters()]
    assert x.grad.shape == (b, t, d) and host_peak < 50e6


@pytest.mark.slow
def test_the_whole_of_gpt3_is_counted():
    v, t, layers, d = 50257, 2048, 96, 12288
    model = GPT(GPT3).initialize(array=ShapeArray((), np.float32))
    count = train(model, ShapeArray((1, t), np.int64), num_steps=1)
    parameters = (v + t) * d + layers * (12 * d**2 + 13 * d) + 2 * d
    assert model.num_parameters() == parameters == 174_604_259_328
    counted = {name: sum(n for (one, _), n in count["flops"].items() if one == name)
               for name in ("Linear", "FusedAttention", "CrossEntropy")}
    assert counted["Linear"] == layers * (72 * t * d**2 + 18 * t * d) + 6 * t * d * v
    assert 0.5 < counted["FusedAttention"] / (layers * 12 * t**2 * d) < 0.54    # the formula's
    assert counted["CrossEntropy"] == 6 * t * v + 8 * t + 1
    assert count["flops"]["AdamW", "optimizer"] == AdamW.flops_per_parameter * parameters
    assert count["states"] == [(name, (parameters,), np.float32)
                               for name in ("first_moment", "second_moment")]
    assert count["saved"] > 1e11
