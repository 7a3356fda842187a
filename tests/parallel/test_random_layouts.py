"""Random layouts equal one process: axes of up to 16 ranks, kinds, schedules, microbatches, masks,
clipping, dropout, rematerialization, optimizers."""

from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytest

from minipar.autograd import IGNORE_INDEX
from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.memory.remat.plans import rematerialize, uniform
from minipar.nn import GPT, MLP, GPTConfig, MoEConfig, RopeConfig
from minipar.optim import NO_DECAY_FOR_VECTORS, SGD, AdamW
from minipar.parallel.context.rank_groups import ContextOptions
from minipar.parallel.pipeline.schedule.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action
from minipar.parallel.pipeline.schedule.dependencies import OPS, needs
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.testing import worlds
from tests.support.cases import assert_all_close

VOCABULARY, TIME, ROWS = 11, 16, 10
KINDS = ("ddp", "zero1", "zero2", "zero3", "fsdp")
SMALL = {"bucket_mb": 0.004, "first_bucket_mb": 0.001}


def gpt(**changes):
    sizes = {"context": TIME, "num_layers": 6, "num_heads": 4, "width": 8, "dropout": 0.2}
    return lambda: GPT(GPTConfig(VOCABULARY, **sizes | changes))


EXPERTS = {"experts": MoEConfig(4, balance_loss=0, every=2), "dropout": 0.0}
MODELS = {"tied": gpt(), "untied": gpt(tied=False), "experts": gpt(**EXPERTS),
          "llama": gpt(norm="rms", mlp="swiglu", num_kv_heads=4, rope=RopeConfig(), bias=False),
          "mlp": lambda: MLP([4, 7, 5, 6, 7, 8, 5, 6, VOCABULARY], dropout=0.3)}
OPTIMIZERS = {"sgd": lambda slabs: SGD(slabs, lr=0.3, momentum=0.9),
              "adamw": lambda slabs: AdamW(slabs, lr=0.01, weight_decay=0.3,
                                           groups=[NO_DECAY_FOR_VECTORS])}


class Layout(NamedTuple):
    """A run, and its mesh and strategy."""

    model: str
    mesh: dict[str, int]
    kind: str
    options: dict[str, Any]
    parts: tuple[int, ...]          # rows of each microbatch
    max_norm: float | None
    optimizer: str
    remat: bool
    seed: int


def random_layout(seed: int) -> Layout:
    """A layout of the axes and options that go together."""
    draw = np.random.default_rng(seed)
    model = draw.choice([*MODELS])
    mesh = {axis: int(draw.choice([1, 1, 2, 2, 3, 4])) for axis in ("pp", "dp", "replicate")}
    mesh["tp"] = int(draw.choice([1, 1, 2, 4]))
    mesh["cp"] = int(draw.choice([1, 1, 2])) if model != "mlp" else 1
    while prod(mesh.values()) > 16:
        mesh[draw.choice([axis for axis, size in mesh.items() if size > 1])] = 1
    mesh = {axis: size for axis, size in mesh.items() if size > 1 or draw.random() < 0.3}
    mesh.setdefault("dp", 1)
    kind, options = draw.choice(KINDS), {}
    if model == "experts" and mesh["dp"] > 1 and draw.random() < 0.7:
        mesh["ep"] = int(draw.choice([n for n in (2, 4) if mesh["dp"] % n == 0] or [1]))
    if mesh.get("tp", 1) > 1 and model != "mlp" and draw.random() < 0.5:
        options["sequence_parallel"] = True
    if mesh.get("cp", 1) > 1:
        options["context"] = ContextOptions(str(draw.choice(["ring", "all_gather"])))
    if "pp" in mesh:
        options["schedule"] = partial(random_schedule, seed, mesh["pp"], int(draw.integers(1, 3)))
        if mesh.get("tp", 1) > 1 and mesh["pp"] > 1 and model != "mlp" \
                and not options.get("sequence_parallel") and draw.random() < 0.3:
            options["scatter_gather"] = True
    if kind in ("ddp", "zero1", "zero2"):
        options |= SMALL
    elif kind == "fsdp":
        options |= {"prefetch": bool(draw.random() < 0.7),
                    "reshard_after_forward": bool(draw.random() < 0.7)}
    cuts = sorted(draw.choice(range(1, ROWS), draw.integers(0, 5), replace=False).tolist())
    parts = tuple(np.diff([0, *cuts, ROWS]).tolist())
    return Layout(str(model), mesh, str(kind), options, parts,
                  0.1 if draw.random() < 0.5 else None, str(draw.choice([*OPTIMIZERS])),
                  bool(draw.random() < 0.3), seed)


def random_schedule(seed: int, num_ranks: int, stages_of_rank: int, num_microbatches: int):
    """Any order that the dependencies allow; backwards whole, or I and W apart."""
    draw = np.random.default_rng(seed)
    placement = [int(rank) for _ in range(stages_of_rank) for rank in draw.permutation(num_ranks)]
    halves = draw.random() < 0.5
    todo = {Action(kind, stage, i) for stage in range(len(placement))
            for i in range(num_microbatches)
            for kind in (FORWARD, *([INPUT, WEIGHT] if halves else [BACKWARD]))}
    done: set = set()
    rows: list[list[Action]] = [[] for _ in range(num_ranks)]
    while todo:
        ready = sorted(a for a in todo if all(need in done for need in needs(a, len(placement))))
        action = ready[draw.integers(len(ready))]
        todo.remove(action)
        done |= {(op, action.stage, action.microbatch) for op in OPS[action.kind]}
        rows[placement[action.stage]].append(action)
    return rows, placement


def microbatches(strategy, layout: Layout, step: int) -> list[Microbatch]:
    """Uneven masks; each microbatch is dealt over dp, with remainders."""
    draw = np.random.default_rng((layout.seed, step))
    targets = draw.integers(0, VOCABULARY, (ROWS, TIME))
    targets[draw.random(targets.shape) < 0.4] = IGNORE_INDEX
    inputs = draw.integers(0, VOCABULARY, (ROWS, TIME))
    if layout.model == "mlp":
        inputs, targets = draw.standard_normal((ROWS, 4)), targets[:, 0]
    found, start = [], 0
    for size in layout.parts:
        rows = np.arange(start, start + size)[list(strategy.rows(size))]
        found.append(Microbatch(inputs[rows], targets[rows], step * ROWS + rows))
        start += size
    return found


def train(comm, layout: Layout, alone: bool) -> dict:
    """Two steps: losses, norms and, at the end, parameters and the optimizer's states."""
    model = MODELS[layout.model]().initialize(layout.seed, np.float64)
    if layout.remat and not alone:
        model = rematerialize(model, partial(uniform, 1))
    strategy = Strategy(model, comm) if alone else make_strategy(
        layout.kind, model, DeviceMesh(comm, **layout.mesh), **layout.options)
    optimizer, found = OPTIMIZERS[layout.optimizer](strategy.slabs), {}
    for step in range(2):
        optimizer.zero_grad()
        found[f"loss {step}"] = strategy.forward_backward(
            microbatches(strategy, layout, step), 3, step)
        if layout.max_norm is not None:
            found[f"norm {step}"] = strategy.clip_grad_norm(layout.max_norm)
        strategy.step(optimizer)
    return found | strategy.state_dict() | optimizer.state_dict()


@cache
def alone(seed: int) -> dict:
    return Cluster(1).run(lambda comm: train(comm, random_layout(seed), True))[0][0]


def check(comm, seed: int) -> None:
    found = train(comm, random_layout(seed), False)
    assert_all_close(found, alone(seed), rtol=1e-10, atol=1e-12)


QUICK = range(4)


@pytest.mark.parametrize("seed", [*QUICK, *(pytest.param(seed, marks=pytest.mark.slow)
                                            for seed in range(len(QUICK), 300))])
@pytest.mark.one_in(2)
def test_it_equals_one_process(seed):
    layout = random_layout(seed)
    size = prod(size for axis, size in layout.mesh.items() if axis != "ep")
    Cluster(size).run(lambda comm: check(comm, seed))


OF_FOUR = [seed for seed in range(300) if prod(
    size for axis, size in random_layout(seed).mesh.items() if axis != "ep") == 4][:20]


@worlds(mpi=(4,))
@pytest.mark.parametrize("seed", [*OF_FOUR[:2], *(pytest.param(seed, marks=pytest.mark.slow)
                                                  for seed in OF_FOUR[2:])])
def test_it_does_on_real_ranks(world, seed):
    world.run(lambda comm: check(comm, seed))
