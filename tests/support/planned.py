"""Models to plan for, a step by a plan, and chains of made-up costs."""

from functools import cache
from typing import NamedTuple

import numpy as np

from minipar.autograd import Meter, Tensor, backward
from minipar.backend.shape_array import ShapeArray
from minipar.memory.ledger import Ledger
from minipar.memory.remat.plans import rematerialize
from minipar.memory.remat.profile import ChainProfile, PartProfile, profile_parts
from minipar.memory.remat.selective import rematerialize_attention
from minipar.nn import GPT, MLP, GPTConfig
from minipar.nn.chain import chain
from minipar.nn.step_context import training_step

ROWS, VOCABULARY, SIZES = 3, 23, (7, 12, 3, 20, 9, 30, 5)
KINDS = ("gpt", "selective gpt", "relu", "gelu", "tanh")


class Counted(NamedTuple):
    """The counts of one step, and its gradients."""

    peak: int
    forward: int        # FLOPs
    backward: int
    gradients: dict[str, np.ndarray]


def model_of(kind, dtype=np.float32, dropout=0.1, array=None):
    """The model of one of KINDS, with numbers."""
    if kind in KINDS[2:]:
        return MLP(SIZES, kind, dropout).initialize(3, dtype, array)
    config = GPTConfig(VOCABULARY, context=16, num_layers=5, num_heads=2, width=16,
                       dropout=dropout)
    model = GPT(config).initialize(3, dtype, array)
    return rematerialize_attention(model) if kind == "selective gpt" else model


def batch_of(kind, dtype=np.float32):
    """Inputs as the model's parts are given them, and targets."""
    rng = np.random.default_rng(0)
    if kind in KINDS[2:]:
        return (Tensor(rng.standard_normal((ROWS, SIZES[0])).astype(dtype)),
                rng.integers(0, SIZES[-1], ROWS))
    return tuple(rng.integers(0, VOCABULARY, (ROWS, 16)) for _ in range(2))


@cache
def costs_of(kind, dtype=np.float32, dropout=0.1, shapes_only=False):
    """The profile of the parts of the model of one of KINDS."""
    x, targets = batch_of(kind, dtype)
    model = model_of(kind, dtype, dropout, ShapeArray((), dtype) if shapes_only else None)
    if shapes_only:
        empty = ShapeArray(x.shape, x.dtype)
        x, targets = Tensor(empty) if isinstance(x, Tensor) else empty, ShapeArray(
            targets.shape, targets.dtype)
    with training_step(1, 2, range(ROWS)):
        return profile_parts(chain(model), x, lambda y: model.criterion(y, targets, float(ROWS)),
                             model.parameters())


def step(kind, policy, dtype=np.float32, dropout=0.1):
    """Run one step by a policy."""
    model, (x, targets) = model_of(kind, dtype, dropout), batch_of(kind, dtype)
    rematerialize(model, policy)
    ledger, meter = Ledger(model.parameters()), Meter()
    with ledger.recording(), meter.running(), training_step(1, 2, range(ROWS)):
        backward(model.criterion(model(x), targets, float(ROWS)))
    assert ledger.live == 0
    return Counted(ledger.peak, meter.total_flops("forward"),
                   meter.total_flops("backward") + meter.total_flops("weights"),
                   {name: p.grad for name, p in model.named_parameters()})


def random_costs(rng, length):
    """The profile of a chain whose parts cost made-up bytes and FLOPs.

    Some save their input or output, and some recompute by themselves in backward.
    """
    parts = []
    for _ in range(length):
        size, tape, more = rng.integers(0, 6), rng.integers(0, 10), rng.integers(0, 3)
        forward = rng.integers(1, 20)
        saved = tape + (size if rng.random() < 0.4 else 0)
        parts.append([size, (saved, tape), (saved + more, tape + more), 1, rng.random() < 0.4,
                      forward, rng.integers(0, forward + 1), rng.integers(0, 3), 0])
    return ChainProfile(tuple([PartProfile(*[tuple(map(int, n)) if isinstance(n, tuple) else int(n)
                                   for n in part]) for part in parts]), int(rng.integers(0, 10)))


def random_plan(rng, start, stop, depth=0):
    """A plan of parts `start` … `stop` - 1."""
    items = []
    while start < stop:
        end = int(rng.integers(start + 1, stop + 1))
        keep = rng.random() < 0.5 or depth > 4
        items.append(start if keep else random_plan(rng, start, end, depth + 1))
        start = start + 1 if keep else end
    return tuple(items)


def all_plans(start, stop, whole=True):
    """Every plan of parts `start` … `stop` - 1; unless `whole`, without one segment of them all."""
    if start == stop:
        return [()]
    plans = [(start, *rest) for rest in all_plans(start + 1, stop)]
    for end in range(start + 1, stop + whole):
        plans += [(segment, *rest) for segment in all_plans(start, end, False)
                  for rest in all_plans(end, stop)]
    return plans
