"""Annotated programs send what the strategies written by hand send, byte for byte."""

import numpy as np
import pytest

from minipar import Cluster, DeviceMesh
from minipar.gspmd import P, plan
from minipar.nn import GPT, GPTConfig
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from tests.repository.test_layering import ROOT

CONFIG = GPTConfig(vocab_size=256, context=64, num_layers=4, num_heads=4, width=128)
SAMPLES, LOSS = 8, 4                    # LOSS: bytes of the loss, which strategies sum elsewhere
BATCH = {"ids": P("dp")}
WEIGHTS = {"h.*.attn.c_attn.weight": P(None, "tp"), "h.*.mlp.c_fc.weight": P(None, "tp"),
           "wte.weight": P("tp")}
FSDP = BATCH | {"*.weight": P("dp", priority=1), "*.bias": P("dp", priority=1)}


def loss(model, ids, targets):
    return model.loss(ids, targets, loss_divisor=float(ids.size))


def sent(mesh, annotations, strategy, **options):
    """(bytes that a rank sends in a step by the plan, by the strategy)."""
    ids, targets = np.random.default_rng(0).integers(0, 256, (2, SAMPLES, CONFIG.context))

    def body(comm):
        made = make_strategy(strategy, GPT(CONFIG).initialize(seed=0), DeviceMesh(comm, **mesh),
                             **options)
        rows = list(made.rows(SAMPLES))
        comm.start_trace()
        made.forward_backward([Microbatch(ids[rows], targets[rows], np.array(rows))])
        return comm.stop_trace().bytes_sent(comm.rank)

    program = plan(loss, ids, targets, model=GPT(CONFIG), mesh=mesh, annotations=annotations,
                   names=["ids", "targets"]).program
    (by_hand,) = set(Cluster(4).run(body)[0])
    return round(program.num_bytes + program.gradient_bytes), by_hand


def says(*numbers):
    page = (ROOT / "docs" / "pages" / "gspmd.md").read_text(encoding="utf-8")
    return all(f"{number:,}" in page for number in numbers)


@pytest.mark.parametrize(("mesh", "annotations", "more"), [
    ({"dp": 4}, BATCH, 2 * LOSS * 3 // 4), ({"tp": 4}, WEIGHTS, 0),
    ({"dp": 2, "tp": 2}, BATCH | WEIGHTS, LOSS)], ids=["ddp", "tensor", "both"])
@pytest.mark.one_in(2)
def test_the_bytes_are_those_by_hand(mesh, annotations, more):
    annotated, by_hand = sent(mesh, annotations, "ddp")
    assert annotated == by_hand + more
    assert says(annotated, by_hand)


def test_fsdp_gathers_tied_words_twice():
    """Each use gathers a weight: the embedding, and the head as its transpose."""
    annotated, by_hand = sent({"dp": 4}, FSDP, "fsdp", reshard_after_forward=False)
    assert by_hand < annotated < 1.04 * by_hand
    assert says(annotated, by_hand)
