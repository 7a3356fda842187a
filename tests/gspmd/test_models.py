"""Unmodified models, annotated: the same losses and weights as on one device, in both worlds."""

import numpy as np
import pytest

from minipar import AdamW, Cluster, DeviceMesh
from minipar.gspmd import P, plan, shard
from minipar.nn import GPT, MLP, GPTConfig
from minipar.nn.rotary import RopeConfig
from minipar.optim import clip_grad_norm
from minipar.testing.worlds import worlds

GPT2 = GPTConfig(vocab_size=13, context=8, num_layers=2, num_heads=4, width=16)
LLAMA = GPTConfig(vocab_size=13, context=8, num_layers=1, num_heads=4, num_kv_heads=2, width=16,
                  rope=RopeConfig(), norm="rms", mlp="swiglu", bias=False, tied=False)
BATCH = {"ids": P("dp"), "targets": P("dp")}
TWO_WEIGHTS = {"h.*.attn.c_attn.weight": P(None, "tp"), "h.*.mlp.c_fc.weight": P(None, "tp")}
FSDP = BATCH | {"h.*.weight": P("dp", priority=1), "h.*.bias": P("dp", priority=1),
                "w?e.weight": P("dp", priority=1)}
LAYOUTS = {
    "batch": ({"dp": 4}, BATCH),
    "batch over 3": ({"dp": 3}, BATCH),
    "two weights": ({"tp": 4}, TWO_WEIGHTS),
    "two weights and words": ({"tp": 3}, TWO_WEIGHTS | {"wte.weight": P("tp")}),
    "batch and two weights": ({"dp": 2, "tp": 2}, BATCH | TWO_WEIGHTS),
    "batch and two weights over 8": ({"dp": 2, "tp": 4}, BATCH | TWO_WEIGHTS | {
        "wte.weight": P("tp")}),
    "weights over dp": ({"dp": 4}, FSDP),
    "weights over dp and tp": ({"dp": 2, "tp": 2}, BATCH | {
        "h.*.mlp.c_fc.weight": P("dp", "tp", priority=1),
        "h.*.attn.c_attn.weight": P("dp", "tp", priority=1)}),
    "time": ({"cp": 4}, {"ids": P(None, "cp")}),
    "time over 3": ({"cp": 3}, {"ids": P(None, "cp")}),
    "a dimension over both axes": ({"dp": 2, "tp": 2}, {"ids": P(("dp", "tp"))}),
}


def batch(config: GPTConfig, rows: int = 7) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    ids, targets = rng.integers(0, config.vocab_size, (2, rows, config.context))
    targets[0, 3] = -100
    return ids, targets


def loss(model, ids, targets):
    return model.loss(ids, targets, loss_divisor=40.0)


def train(model, step, slabs, arrays, steps=3):
    optimizer = AdamW(slabs, lr=1e-2)
    losses = []
    for _ in range(steps):
        model.zero_grad()
        value = step(*arrays)
        value.backward()
        losses.append(value.item())
        losses.append(float(clip_grad_norm(slabs, 0.5)))
        optimizer.step()
    return losses


def check(world_run, mesh, annotations, config):
    arrays = batch(config)
    alone = GPT(config).initialize(seed=1, dtype=np.float64)
    expected = train(alone, lambda *x: loss(alone, *x), alone.slabs, arrays)
    weights = alone.state_dict()

    def body(comm):
        step = shard(loss, *arrays, model=GPT(config), dtype=np.float64, annotations=annotations,
                     mesh=DeviceMesh(comm, order=tuple(mesh), **mesh), names=["ids", "targets"])
        step.initialize(seed=1, dtype=np.float64)
        losses = train(step, step, step.slabs, arrays)
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-10)
        state = step.state_dict()
        assert state.keys() == weights.keys()
        for name, values in weights.items():
            np.testing.assert_allclose(state[name], values, rtol=0, atol=1e-10, err_msg=name)

    world_run(body)


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.one_in(3)
def test_a_gpt_trains_as_on_one_device(layout, config):
    mesh, annotations = LAYOUTS[layout]
    if config is LLAMA:
        annotations = {name: spec for name, spec in annotations.items() if "bias" not in name}
    check(Cluster(int(np.prod(list(mesh.values())))).run, mesh, annotations, config)


@worlds(4)
@pytest.mark.parametrize("layout", ["batch and two weights", "weights over dp", "time"])
@pytest.mark.one_in(2)
def test_in_both_worlds(world, layout):
    check(world.run, *LAYOUTS[layout], GPT2)


@pytest.mark.parametrize(("mesh", "annotations"), [
    ({"dp": 3}, {"x0": P("dp")}), ({"tp": 3}, {"layers.0.weight": P(None, "tp")}),
    ({"dp": 2, "tp": 2}, {"x0": P("dp"), "*.0.weight": P(None, "tp")})], ids=str)
def test_an_mlp_trains_as_on_one_device(mesh, annotations):
    rng = np.random.default_rng(0)
    x, targets = rng.standard_normal((5, 4)), rng.integers(0, 3, 5)

    def loss(model, x, targets):
        return model.loss(x, targets, loss_divisor=5.0)

    alone = MLP([4, 7, 5, 3]).initialize(seed=2, dtype=np.float64)
    names = [name for name, _ in alone.named_parameters()]
    first = {"x0" if name == "x0" else names[0]: spec for name, spec in annotations.items()}
    expected = train(alone, lambda *a: loss(alone, *a), alone.slabs, (x, targets))

    def body(comm):
        step = shard(loss, x, targets, model=MLP([4, 7, 5, 3]), dtype=np.float64,
                     annotations=first, mesh=DeviceMesh(comm, order=tuple(mesh), **mesh))
        step.initialize(seed=2, dtype=np.float64)
        np.testing.assert_allclose(train(step, step, step.slabs, (x, targets)), expected,
                                   rtol=0, atol=1e-10)

    Cluster(int(np.prod(list(mesh.values())))).run(body)


def sent_and_planned(mesh, annotations, config=GPT2, rows=8):
    """The bytes that rank 0 sent in one step, and those of the plan: forward, backward."""
    arrays = batch(config, rows)

    def body(comm):
        step = shard(loss, *arrays, model=GPT(config), dtype=np.float64, annotations=annotations,
                     mesh=DeviceMesh(comm, order=tuple(mesh), **mesh), names=["ids", "targets"])
        step.initialize(seed=1, dtype=np.float64)
        trace = comm.trace
        trace.clear()
        value = step(*arrays)
        forward = trace.bytes_sent(comm.rank)
        value.backward()
        return forward, trace.bytes_sent(comm.rank) - forward

    sent, _ = Cluster(int(np.prod(list(mesh.values()))), trace=True).run(body)
    program = plan(loss, *arrays, model=GPT(config), dtype=np.float64, annotations=annotations,
                   mesh=mesh, names=["ids", "targets"]).program
    return sent, (program.num_bytes, program.gradient_bytes)


@pytest.mark.parametrize("layout", ["batch", "two weights", "batch and two weights over 8",
                                    "weights over dp", "weights over dp and tp", "time over 2"])
@pytest.mark.one_in(2)
def test_bytes_sent_are_those_of_the_plan(layout):
    # over 2 ranks every all-to-all sends as much; over more a small one takes Bruck's way
    sent, planned = sent_and_planned(*LAYOUTS.get(layout, ({"cp": 2}, {"ids": P(None, "cp")})))
    mean = np.mean(sent, axis=0)        # where p is no divisor, a ring's pieces differ
    np.testing.assert_allclose(mean, planned, rtol=1e-12)


def num_elements(config, cut=lambda name: True):
    return sum(parameter.size for name, parameter in GPT(config).named_parameters() if cut(name))


def test_the_batch_alone_gives_the_all_reduces_of_ddp():
    _, (_, backward) = sent_and_planned({"dp": 4}, BATCH)
    assert backward == 2 * num_elements(GPT2) * 8 * 3 / 4       # 2 Ψ (p-1)/p, float64


def test_two_weights_give_two_all_reduces_a_block_and_direction():
    arrays = batch(GPT2, 8)
    program = plan(loss, *arrays, model=GPT(GPT2), dtype=np.float64, annotations=TWO_WEIGHTS,
                   mesh={"tp": 4}, names=["ids", "targets"]).program
    x = 8 * 8 * 16 * 8                                          # b t d, float64
    assert program.num_bytes == program.gradient_bytes == GPT2.num_layers * 2 * 2 * x * 3 / 4
    assert [each.kind for each in program.collectives] == ["all-reduce"] * 4


def test_weights_over_dp_give_the_gathers_of_fsdp():
    arrays = batch(GPT2, 8)
    program = plan(loss, *arrays, model=GPT(GPT2), dtype=np.float64, annotations=FSDP,
                   mesh={"dp": 4}, names=["ids", "targets"]).program
    kinds = {each.kind for each in program.instructions if each.num_bytes}
    assert kinds == {"all-gather", "all-reduce"}                # the last one is the loss: 8 bytes
    # all but the last layer norm are gathered for each use, the words (13 over 4: 3 rows of
    # padding) for two of them; their gradients are reduce-scattered
    gathered = (num_elements(GPT2, lambda name: "ln_f" not in name and "wte" not in name)
                + 2 * 16 * 16) * 8 * 3 / 4
    assert program.num_bytes == gathered + 2 * 8 * 3 / 4
    assert program.gradient_bytes == gathered + 2 * 2 * 16 * 8 * 3 / 4


def test_the_order_of_construction_changes_nothing():
    from minipar.autograd import Tensor, linear, tanh

    def left_first(x, a, b):
        left, right = tanh(linear(x, a)), tanh(linear(x, b))
        return left + right

    def right_first(x, a, b):
        right = tanh(linear(x, b))
        left = tanh(linear(x, a))
        return left + right

    def found(function):
        x, a, b = (Tensor(np.zeros((8, 8)), requires_grad=True) for _ in range(3))
        planned = plan(function, x, a, b, names=["x", "a", "b"], mesh={"p": 2, "q": 2},
                       annotations={"x": P("p"), "a": P("q"), "b": P(None, "p")})
        return ([(value.name, planned.shardings.of(value)) for value in planned.shardings.dims],
                planned.shardings.conflicts,
                [(each.kind, each.axes, each.num_bytes) for each in planned.program.instructions])

    assert found(left_first) == found(right_first)


