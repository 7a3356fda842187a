"""The numbers in the answers of lessons 00 to 06 are what the code computes."""

import math
import re

import numpy as np
import pytest

from minipar.backend.shape_array import ShapeArray
from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce
from minipar.comm.cost import predict
from minipar.nn import GPT, GPTConfig
from minipar.parallel.cost.activations import gpt_activations, layer_activations
from tests.lessons.test_answers import PAGES, says


def test_00_seven_billion():
    config = GPTConfig(50257, 2048, 32, 32, 4096)
    size = GPT(config).initialize(array=ShapeArray((), np.float32)).num_parameters()
    flops, in_a_month = 6 * size * 2e12, 0.4 * 312e12 * 30 * 86400
    says("00", f"{size / 1e9:.2f} billion", f"16 Ψ is {16 * size / 1e9:.0f} GB",
         f"{gpt_activations(config, 1) / 1e9:.0f} GB of activations",
         f"{in_a_month / 1e20:.1f}e20 in 30 days", f"{flops / 1e22:.1f}e22",
         f"about {flops / in_a_month:.0f} devices",
         f"t/12 = {32768 / 12:,.0f}", f"t/6 = {32768 / 6:,.0f}")


@pytest.mark.parametrize(("num_ranks", "rounds"), [(2, 2), (8, 2), (3, 3), (5, 3), (9, 3)])
def test_01_even_ranks_send_first(num_ranks, rounds):
    def main(comm):
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        for sends in (True, False) if comm.rank % 2 == 0 else (False, True):
            comm.send(np.ones(4), right) if sends else comm.recv(np.empty(4), left)
    assert Cluster(num_ranks, latency=1, bandwidth=math.inf).run(main)[1] == rounds


def test_02_segments():
    def seconds(k):
        return 1e6 * (8 + k - 2) * (5e-6 + 4e6 * 1e-10 / k)
    best = min(range(1, 100), key=seconds)
    says("02", f"k = {best} and {seconds(best):.0f} µs", f"20 segments take {seconds(20):.0f} µs",
         f"one segment {seconds(1):,.0f} µs")
    saved = predict("scatter", "linear", 8, 8).rounds - predict("scatter", "binomial", 8, 8).rounds
    says("02", f"on 8 ranks {saved} latencies, {5 * saved} µs")


def test_03_order_of_sums():
    def main(comm):
        return all_reduce(comm, np.full(4, [1e16, 1.0, -1e16, 1.0][comm.rank]), algorithm="ring")
    for total in Cluster(4).run(main)[0]:
        assert total.tolist() == [0, 1, 0, 1]


def test_04_five_ranks_and_05_ten_thousand():
    ring, halving = (predict("all_reduce", name, 5, 1000) for name in ("ring", "rabenseifner"))
    says("04", f"= {halving.num_bytes / 8000:g} n bytes", f"= {ring.num_bytes / 8000:g} n.")
    tree, every_one = (predict("barrier", name, 10_000, 0) for name in ("tree", "dissemination"))
    says("05", f"{tree.messages:,} messages in {tree.rounds} rounds",
         f"{every_one.messages:,} in {every_one.rounds}.")


@pytest.mark.parametrize(("width", "heads"), [(32, 4), (768, 12), (12288, 96)])
def test_06_when_probabilities_win(width, heads):
    def ahead(tokens):
        kept = layer_activations(GPTConfig(64, tokens, 1, heads, width), 1)
        return 2 * kept["probabilities"] - sum(kept.values())
    page = (PAGES / "lessons" / "06.md").read_text("utf-8")
    first = next(t for t in map(int, re.findall(r"from ([\d,]+) (?:tokens|for)", page.replace(
        ",", ""))) if ahead(t) > 0)
    assert ahead(first - 1) <= 0, "they win before"
