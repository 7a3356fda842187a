"""The cost of rematerialization beside each strategy: counted, and equal to what is on paper."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.memory.ledger import Ledger
from minipar.memory.remat.plans import keep_all, rematerialize, uniform
from minipar.memory.remat.predict import LOSS, run_steps
from minipar.memory.remat.profile import ChainProfile, profile_parts
from minipar.memory.remat.selective import rematerialize_attention
from minipar.nn import GPT, GPTConfig
from minipar.nn.chain import chain
from minipar.nn.step_context import training_step
from minipar.optim import SGD
from minipar.parallel.cost.data_parallel import (
    all_gather_elements,
    chunk_lengths,
    gathered_units,
    gathers,
    reduce_scatter_elements,
    units_of,
)
from minipar.parallel.cost.rematerialization import computed_again, layer_messages_again
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.parallel.tensor.parallelize import parallelize
from tests.support.cases import nested
from tests.support.measured_step import CONFIGS, rings_only
from tests.support.rows_on_paper import activations_of_row, unit_path

POLICIES = {"none": keep_all, "full": lambda parts: uniform(1, parts),
            "every 2": lambda parts: uniform(2, parts), "every 3": lambda parts: uniform(3, parts),
            "nested": nested, "deep": lambda parts: (0, ((1, (2,)), 3), 4)}


def slow(value):
    """A parameter for `make test-all`."""
    return pytest.param(value, marks=pytest.mark.slow)


def test_by_hand():
    assert list(computed_again((0, (1, 2), 3))) == [(1, True), (2, False)]
    assert list(computed_again((0, (1,), (2,), 3))) == [(2, False), (1, False)]
    assert list(computed_again((((0,), (1, 2)), 3))) == [(0, True), (1, True), (2, False),
                                                         (0, False)]
    assert unit_path((0, (1, 2), 3), "abcd", "-bcd") == list("abcdbcb-")
    assert layer_messages_again((0, (1,), (2,), 3), [False, True, True, False]) == 2
    assert layer_messages_again((0, (1, 2), 3), [False, True, True, False], sequence=True) == 7


# FSDP and ZeRO-3 -----------------------------------------------------------------------------

def gathered_bytes(strategy, num_steps=3):
    """Bytes of gathers and of all that this rank sends in the last of the steps, control apart."""
    comm, draw = strategy.comm, np.random.default_rng(0)
    ids, optimizer = draw.integers(0, 11, (comm.size, 4)), SGD(strategy.slabs)
    for _ in range(num_steps):
        comm.start_trace()
        optimizer.zero_grad()
        mine = ids[comm.rank:comm.rank + 1]
        strategy.forward_backward([Microbatch(mine, mine, np.array([comm.rank]))])
        strategy.step(optimizer)
        trace = comm.stop_trace()
    return sum(message.num_bytes for message in trace.select())


@pytest.mark.parametrize("p", [3, slow(2)])
@pytest.mark.parametrize("name", ["full", "every 3", "deep", *map(slow, ("none", "every 2",
                                                                        "nested"))])
def test_fsdp_gathers_what_is_on_paper(name, p, monkeypatch):
    """In rings; a unit that is used next, or was used last, is there already."""
    rings_only(monkeypatch)
    config, plan = CONFIGS["uneven"], POLICIES[name](range_of(5))
    sizes, uses = units_of(GPT(config))
    path = unit_path(plan, [[unit] for unit in uses], [[], *([unit] for unit in uses[1:])])
    if name in ("none", "full"):
        assert gathers(path) == gathered_units(uses)           # segments of one block send nothing
    expected = sum(all_gather_elements(chunk_lengths(sizes[unit], p)) for unit in gathers(path))
    expected = expected + sum(reduce_scatter_elements(chunk_lengths(n, p)) for n in sizes)

    def body(comm):
        model = rematerialize(GPT(config).initialize(0), POLICIES[name])
        assert gathered_bytes(make_strategy("fsdp", model, comm)) == 4 * expected[comm.rank]
    Cluster(p).run(body)


@pytest.mark.parametrize("name", ["full", "every 3", slow("deep")])
def test_units_that_stay_until_backward_stay_while_it_computes_again(name):
    def body(comm):
        found = []
        for policy in (keep_all, POLICIES[name]):
            model = rematerialize(GPT(CONFIGS["uneven"]).initialize(0), policy)
            found.append(gathered_bytes(make_strategy("fsdp", model, comm,
                                                      reshard_after_forward=False)))
        assert found[0] == found[1]
    Cluster(3).run(body)


def range_of(count):
    """Parts of a GPT, as far as policies look at them."""
    model = GPT(GPTConfig(11, context=6, num_layers=count - 2, num_heads=2, width=10))
    return chain(model)


@pytest.mark.parametrize("name", [slow("full"), "every 3", slow("deep")])
def test_zero3_gathers_what_is_on_paper(name, monkeypatch):
    """Each weight by itself; backward needs matrices that data goes through, and norms' weights."""
    rings_only(monkeypatch)
    config, p, plan = CONFIGS["divides"], 2, POLICIES[name](range_of(5))
    model = GPT(config)
    names = {q: key for key, q in model.named_parameters()}
    forward = [[names[q] for q in part.parameters()] for part in chain(model)]
    forward[-1] = [*forward[-1][-2:], "wte.weight"] if "wte" in forward[-1][0] else forward[-1]
    backward = [[key for key in part[::-1] if key.endswith("weight")] for part in forward]
    path = unit_path(plan, forward, [[], *backward[1:]])
    sizes = {key: q.size for q, key in names.items()}
    expected = sum(all_gather_elements(chunk_lengths(sizes[key], p)) for key in gathers(path))
    expected = expected + sum(reduce_scatter_elements(chunk_lengths(n, p)) for n in sizes.values())

    def body(comm):
        model = rematerialize(GPT(config).initialize(0), POLICIES[name])
        assert gathered_bytes(make_strategy("zero3", model, comm)) == 4 * expected[comm.rank]
    Cluster(p).run(body)


# Tensor parallelism --------------------------------------------------------------------------

B, T, D, HEADS, V, SIZE = 2, 8, 24, 12, 11, 8       # float64
IDS = np.random.default_rng(0).integers(0, V, (B, T))
MODES = {"tensor": {}, "sequence": {"sequence_parallel": True},
         "gathered again": {"sequence_parallel": True, "gather_again": True}}


def messages(p, mode, dropout, change, num_layers=4):
    """Bytes sent by the collectives of a forward and backward, those of small weights apart."""
    def body(comm):
        model = change(GPT(GPTConfig(V, T, num_layers, HEADS, D, dropout=dropout)))
        parallelize(model, comm, **MODES[mode]).initialize(0, np.float64)
        with training_step(1, 2, range(B)):
            model.loss(IDS, IDS).backward()
    cluster = Cluster(p, trace=True)
    cluster.run(body)
    labels = ("all_reduce",) if mode == "tensor" else ("all_gather", "reduce_scatter")
    return sum(cluster.trace.bytes_sent(label=label) for label in labels)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("mode", ["tensor", "sequence", slow("gathered again")])
@pytest.mark.parametrize("name", ["full", slow("every 2"), "every 3", slow("inside")])
def test_forward_s_collectives_are_repeated_but_for_the_last(name, mode, dropout):
    """Without dropout nothing is saved after the last product of a segment: 1 instead of 2 of a
    layer's all-reduces, 3 instead of 4 halves."""
    p, n = 2, SIZE * B * T * D
    policy = {"inside": lambda parts: (0, ((1, (2,)), 3), 4, 5)}.get(name) or POLICIES[name]
    plain = messages(p, mode, dropout, lambda model: model)
    again = messages(p, mode, dropout, lambda model: rematerialize(model, policy))
    blocks = [part.is_block for part in range_of(6)]
    count = layer_messages_again(policy(range_of(6)), blocks, dropout > 0, mode != "tensor")
    each = (2 if mode == "tensor" else 1) * (p - 1) * n     # an all-reduce, or half of one
    assert again - plain == count * each > 0


@pytest.mark.parametrize("mode", [slow("tensor"), "sequence", slow("gathered again")])
def test_selective_repeats_no_message(mode):
    assert messages(2, mode, 0.1, rematerialize_attention) == messages(2, mode, 0.1, lambda m: m)


# Pipelines -----------------------------------------------------------------------------------

CONFIG = GPTConfig(11, context=6, num_layers=6, num_heads=2, width=8, dropout=0.1)


def batch():
    """New arrays: who saves one array for two microbatches saves it once."""
    draw = np.random.default_rng(0)
    return Microbatch(draw.integers(0, 11, (2, 6)), draw.integers(0, 11, (2, 6)), np.arange(2))


def stages_on_paper(policy, cuts):
    """Of each stage: bytes that a microbatch keeps until its backward, and its most in it."""
    model = GPT(CONFIG).initialize()
    parts = chain(model)
    ids, targets, samples = batch()
    with training_step(1, 2, samples):
        costs = profile_parts(parts, ids, lambda y: model.criterion(y, targets, 1.0),
                              model.parameters())
    kept, most = {}, {}
    for stage, (start, stop) in enumerate(zip([0, *cuts], [*cuts, len(parts)])):
        last = stop == len(parts)
        steps = list(run_steps(policy(parts[start:stop]),
                               ChainProfile(costs.parts[start:stop],
                                            costs.loss_bytes if last else 0)))
        (kept[stage],) = [step.live for step in steps if step.kind == LOSS]
        most[stage] = max(step.live for step in steps)
    return kept, most


@pytest.mark.parametrize("schedule", [slow("gpipe"), "1f1b", "interleaved"])
@pytest.mark.parametrize("name", [slow("none"), "full", slow("every 2"), "nested"])
def test_a_stage_keeps_inputs_in_flight_and_one_that_is_computed_again(name, schedule):
    m, p = 6, 2
    policy = POLICIES[name]

    def body(comm):
        model = rematerialize(GPT(CONFIG).initialize(), policy)
        strategy = Strategy(model, DeviceMesh(comm, pp=p), schedule=schedule)
        ledger = Ledger(q for q in model.parameters() if q.initialized)
        batches = [batch() for _ in range(m)]
        for _ in range(2):
            for slab in strategy.slabs:
                slab.zero_grad()
            ledger.forget_peaks()
            with ledger.recording():
                strategy.forward_backward(batches)
        assert ledger.live_of["activations"] == 0
        return ledger.peak_of["activations"], strategy.stages.cuts
    found = Cluster(p).run(body)[0]
    kept, most = stages_on_paper(policy, found[0][1])
    for row, (peak, _) in zip(make_schedule(schedule, p, m)[0], found):
        assert peak == activations_of_row(row, kept, most)
    if name == "full":
        plain = stages_on_paper(keep_all, found[0][1])
        assert all(peak < 0.6 * activations_of_row(row, *plain) for row, (peak, _) in
                   zip(make_schedule(schedule, p, m)[0], found))
