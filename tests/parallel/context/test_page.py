"""The numbers of docs/pages/context.md, computed again."""

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.launcher import simulate
from minipar.nn import GPTConfig
from minipar.parallel.context.attention import context_attention
from minipar.parallel.context.token_order import positions_of_ranks
from minipar.parallel.cost.activations import layer_activations
from tests.repository.test_layering import ROOT

PAGE = (ROOT / "docs/pages/context.md").read_text("utf-8")
CONFIG = GPTConfig(256, 8192, 1, 16, 1024)


def test_activations():
    all_kept = [layer_activations(CONFIG, 1, cp=cp, ulysses=u)
                for cp, u in ((1, 1), (2, 1), (8, 1), (8, 8))]
    whole, *sums = [sum(kept.values()) / 2**20 for kept in all_kept]
    assert (f"| each rank keeps | {whole:,.0f} MiB | "
            + " | ".join(f"{each:.1f} MiB" for each in sums) + " |") in PAGE
    probabilities = all_kept[0]["probabilities"] / 2**20
    others = " | ".join(f"{kept['log-sum-exp'] / 2**20:.1f} MiB" for kept in all_kept[1:])
    assert f"probabilities or log-sum-exp | {probabilities:,.0f} MiB | {others} |" in PAGE


def seconds(p, order):
    """Virtual seconds of attention of 256 tokens a rank on links that cost nothing."""
    def body(comm):
        positions = positions_of_ranks(order, 256 * p, p)
        qkv = Tensor(np.ones((1, len(positions[comm.rank]), 192), np.float32), requires_grad=True)
        context_attention(qkv, comm, positions, 1).sum().backward()
    return simulate(body, Cluster(p, latency=0, bandwidth=1e15))[1]


@pytest.mark.parametrize("order", ["contiguous", "striped"])
def test_times(order):
    ratios = [seconds(p, order) / seconds(p, "zigzag") for p in (2, 4, 8)]
    row = next(line for line in PAGE.splitlines() if f"time of `{order}` / `zigzag`" in line)
    assert row.endswith("| " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")


def test_23_tokens_on_4_ranks():
    lengths = [len(each) for each in positions_of_ranks("contiguous", 23, 8)]
    assert f"pieces of {', '.join(map(str, lengths[:-1]))} and {lengths[-1]}" \
        in " ".join(PAGE.split())
