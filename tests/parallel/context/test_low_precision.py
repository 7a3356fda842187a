"""Context parallelism in 2 bytes a number: half the bytes, exact keys, rounded gradients."""

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.number_formats import BFLOAT16, FLOAT16
from minipar.parallel.context.attention import context_attention
from minipar.parallel.context.rank_groups import ContextOptions
from minipar.parallel.context.token_order import positions_of_ranks
from minipar.parallel.context.ulysses import columns_of_qkv, heads_to_tokens, tokens_to_heads
from minipar.parallel.registry import make_strategy
from minipar.testing import worlds
from tests.parallel.test_low_precision import roundings
from tests.support.low_precision_runs import UNIT, alone, train
from tests.support.sweeps import every

FORMATS = {"bf16": BFLOAT16, "fp16": FLOAT16}
DRAW = np.random.default_rng(0)
LENGTH, HEADS, N = 22, 4, 6
QKV = BFLOAT16.round(DRAW.standard_normal((2, LENGTH, 3 * HEADS * N)).astype(np.float32))
GRAD = BFLOAT16.round(DRAW.standard_normal((2, LENGTH, HEADS * N)).astype(np.float32))


def run(comm, method, fmt):
    """(result, gradient, bytes sent) of this rank's tokens."""
    p, positions = comm.size, positions_of_ranks("zigzag", LENGTH, comm.size)
    mine = positions[comm.rank]
    qkv = Tensor(QKV[:, mine], requires_grad=True)
    comm.start_trace()
    if method == "ulysses":
        whole = tokens_to_heads(qkv, comm, columns_of_qkv(HEADS, HEADS, N, p), positions, fmt)
        out = heads_to_tokens(context_attention(whole, comm.split(comm.rank), [np.arange(LENGTH)],
                                                HEADS // p), comm, positions, fmt)
    else:
        out = context_attention(qkv, comm, positions, HEADS, method=method, fmt=fmt)
    out.backward(GRAD[:, mine])
    return out.data, qkv.grad, comm.stop_trace().bytes_sent()


@worlds(2, 4, mpi=(4,))
@pytest.mark.parametrize("method", ["ring", "all_gather", "ulysses"])
def test_half_the_bytes_and_the_same_numbers(world, method):
    def body(comm):
        out, grad, sent = run(comm, method, None)
        short_out, short_grad, short_sent = run(comm, method, BFLOAT16)
        assert 2 * short_sent == sent > 0
        if method == "ulysses":         # results are rounded on their way
            np.testing.assert_array_equal(short_out, BFLOAT16.round(out))
        else:                           # keys and values are codes already
            np.testing.assert_array_equal(short_out, out)
        off = np.linalg.norm(short_grad - grad) / np.linalg.norm(grad)
        assert 0 < off < 2 * np.sqrt(comm.size) * UNIT["bf16"]
    world.run(body)


@pytest.mark.parametrize("precision, context", every(2, [
    (precision, context) for precision in ("bf16", "fp16") for context in (
        ContextOptions(), ContextOptions(ulysses=2), ContextOptions("all_gather"))]))
@pytest.mark.one_in(4)
def test_a_gpt_in_low_precision(precision, context):
    """Messages in the format of activations: gradients of one process but for rounding."""
    expected = alone("gpt", precision, parts=4)
    bound = 4 * roundings("gpt", precision)**0.5 * UNIT[precision]

    def body(comm):
        found = train(comm, "gpt", precision, lambda model, comm: make_strategy(
            "ddp", model, DeviceMesh(comm, cp=4), context=context,
            activation_format=FORMATS[precision]), parts=4)
        for key, value in found.items():
            if key.startswith("gradient 0"):
                distance = np.linalg.norm(value - expected[key]) / np.linalg.norm(expected[key])
                assert distance < bound, key
    Cluster(4).run(body)
