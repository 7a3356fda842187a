"""Activation memory by formula is what the ledger counts, byte for byte."""

import re
from functools import partial
from itertools import product

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.memory.ledger import Ledger
from minipar.memory.remat.plans import rematerialize, uniform
from minipar.memory.remat.selective import rematerialize_attention
from minipar.nn import GPT, GPTConfig, RopeConfig
from minipar.nn.step_context import training_step
from minipar.parallel.cost.activations import (
    PARALLEL,
    REMAT,
    gpt_activations,
    layer_activations,
)
from minipar.parallel.tensor.parallelize import parallelize
from tests.support import memory_page
from tests.support.memory_page import paper_layer_bytes

B, V = 2, 11
OPTIONS = {"tensor": {}, "sequence": {"sequence_parallel": True},
           "gathered again": {"sequence_parallel": True, "gather_again": True}}
CHANGES = {"none": lambda model: model, "selective": rematerialize_attention,
           "full": partial(rematerialize, policy=partial(uniform, 1))}


def counted(p, parallel, remat, dtype=np.float64, **sizes):
    """Bytes that each rank of p keeps after a forward of a GPT of these sizes."""
    def body(comm):
        model = GPT(GPTConfig(V, **sizes))
        if p > 1:
            parallelize(model, comm, **OPTIONS[parallel])
        CHANGES[remat](model.initialize(0, dtype))
        ledger, ids = Ledger(model.parameters()), np.zeros((B, sizes["context"]), int)
        with ledger.recording(), training_step(0, 0, range(B)):
            loss = model.loss(ids, ids)
        kept = ledger.live
        loss.backward()
        assert ledger.live == 0
        return kept
    return np.array(Cluster(p).run(body)[0])


@pytest.mark.parametrize("parallel, remat", [*product(PARALLEL, REMAT)])
@pytest.mark.parametrize("p, dropout", [(1, 0.1), (2, 0.0), (4, 0.1)])
def test_a_layer_keeps_what_the_formula_says(p, dropout, parallel, remat):
    sizes = {"context": 8, "num_heads": 12, "num_kv_heads": 4, "width": 24, "dropout": dropout}
    three, two = (counted(p, parallel, remat, num_layers=n, **sizes) for n in (3, 2))
    expected = layer_activations(GPTConfig(V, num_layers=1, **sizes), B, p, parallel, remat, 8)
    assert set(three - two) == {sum(expected.values())}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("context", [8, 130])       # one block of queries; three, the last short
def test_a_whole_model(context, dropout):
    sizes = {"context": context, "num_heads": 2, "width": 16, "dropout": dropout, "num_layers": 2}
    (kept,) = counted(1, "tensor", "none", np.float32, **sizes)
    assert kept == gpt_activations(GPTConfig(V, **sizes), B)


def test_the_papers_table():
    """22 billion parameters: 105 heads … the paper's own sizes, s = 2048, a = 64, h = 6144."""
    config = GPTConfig(51200, 2048, 48, 64, 6144)
    whole = 4 * 2048 * 6144
    assert paper_layer_bytes(config, 4) == whole * (34 + 5 * 64 * 2048 / 6144)
    assert paper_layer_bytes(config, 4, 8) \
        == pytest.approx(whole * (10 + 24 / 8 + 5 * 64 * 2048 / 6144 / 8))
    assert paper_layer_bytes(config, 4, 8, "sequence", "selective") == whole * 34 / 8
    assert paper_layer_bytes(config, 4, 8, "tensor", "full") == 2 * whole
    ours = layer_activations(config, 4, itemsize=2)
    without_attention = {k: v for k, v in ours.items() if k != "probabilities"}
    assert sum(without_attention.values()) == 32 * whole + 2 * 2 * 4 * 2048     # the norms' scales


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="unknown remat 'half': choose from none, selective, full"):
        layer_activations(GPTConfig(V), B, remat="half")


@pytest.mark.parametrize("kind", [{"mlp": "swiglu"}, {"norm": "rms"}, {"mlp_width": 64},
                                  {"rope": RopeConfig(1e4)}], ids=str)
def test_layers_that_are_not_gpt_2_s_are_refused(kind):
    (name,) = kind
    with pytest.raises(ValueError, match=f"{name} is .* the formulas of GPT-2's layers"):
        layer_activations(GPTConfig(V, **kind), B)


@pytest.mark.slow
def test_the_page_s_tables_are_up_to_date():
    """To the words; what is measured moves by a little with every allocation of the library."""
    shown, measured = memory_page.PAGE.read_text(), memory_page.page()
    number, advice = re.compile(r"\d+(?:\.\d+)?"), "run: python -m tests.support.memory_page"
    assert number.sub("#", shown) == number.sub("#", measured), advice
    np.testing.assert_allclose(*([float(found) for found in number.findall(text)]
                                 for text in (shown, measured)), rtol=0.02, err_msg=advice)
    total = sum(size for size, _ in memory_page.PAPER.values()) * memory_page.WHOLE
    assert total == pytest.approx(paper_layer_bytes(memory_page.CONFIG, memory_page.BATCH))
