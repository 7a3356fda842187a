"""Numbers in the answers of the lesson on pruning: averages of five seeds, trained again."""

import re
import sys
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from minipar.autograd import no_grad
from minipar.comm import Cluster, Communicator
from minipar.compress.footprint import ModelVersion, measure, sparse_versions
from minipar.compress.pruning.masks import Masks, prunable_weights
from minipar.compress.pruning.prune import prune
from minipar.compress.pruning.saliency import magnitude, random
from minipar.compress.pruning.sparsity_schedule import GradualPruning
from minipar.data import Batches
from minipar.nn import MLP
from minipar.optim import AdamW
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Microbatch
from tests.lessons.test_answers import PAGES, ROOT, says

sys.path.insert(0, str(ROOT / "lessons"))
from support.lesson_23 import BATCH, DATA, MORE, ROWS, SIZES, STEPS

SEEDS = range(5)


def on_one_rank(body: Callable[[Communicator], object]):
    return Cluster(1).run(body)[0][0]


def train(model: MLP, first: int, num_steps: int, seed: int,
          before: Callable = lambda step: None) -> float:
    """As in lesson_23.py, but with a seed, and `before` each step; the % of digits recognized."""
    def body(comm: Communicator) -> None:
        strategy = DistributedDataParallel(model, comm)
        optimizer = AdamW(strategy.slabs, 3e-3)
        batches = Batches(DATA.train_x, DATA.train_y, BATCH, seed)
        for step in range(first, first + num_steps):
            before(step)
            optimizer.zero_grad()
            strategy.forward_backward([Microbatch(*batches.batch(step))], 0, step)
            strategy.step(optimizer)
    on_one_rank(body)
    with no_grad():
        return 100 * float(np.mean(model.logits(DATA.test_x).data.argmax(1) == DATA.test_y))


@cache
def trained(seed: int) -> dict[str, np.ndarray]:
    model = MLP(SIZES).initialize(seed)
    train(model, 0, STEPS, seed)
    return model.state_dict()


def copy_of(seed: int) -> MLP:
    model = MLP(SIZES).initialize(0)
    model.load_state_dict(trained(seed))
    return model


def at_once(seed: int, amount: float, num_steps: int = MORE, score: Callable = magnitude) -> float:
    """Prune `amount` before the first of `num_steps` steps."""
    model = copy_of(seed)
    Masks(model, prune(model, score(prunable_weights(model)), amount))
    return train(model, STEPS, num_steps, seed)


def along_cubic(seed: int, amount: float, num_steps: int) -> float:
    """Prune during the first half of the steps."""
    model = copy_of(seed)
    masks = Masks(model, {name: np.ones(p.shape, bool)
                          for name, p in prunable_weights(model).items()})
    pruning = GradualPruning(model, masks, amount, STEPS, num_steps // 2)
    found = train(model, STEPS, num_steps, seed, pruning.step)
    assert pruning.finished
    return found


def page_says(pattern: str) -> list[float]:
    """The numbers in a sentence of the page."""
    text = " ".join((PAGES / "lessons" / "23.md").read_text("utf-8").split())
    found = re.search(pattern, text)
    assert found, pattern
    return [float(each) for each in found.groups()]


@pytest.mark.slow               # 35 trainings: the next test has those at 90 %
def test_where_five_points_are_lost():
    """Within a point: other processors and libraries round float32 differently."""
    found = [np.mean([train(copy_of(seed), STEPS, MORE, seed) for seed in SEEDS])]
    for amount in (0.8, 0.9, 0.95):
        found.append(np.mean([at_once(seed, amount) for seed in SEEDS]))
    for amount in (0.6, 0.7, 0.8):
        found.append(np.mean([at_once(seed, amount, score=random) for seed in SEEDS]))
    n = r"([\d.]+) %"
    said = page_says(rf"dense {n}; magnitude {n} at 80 %, {n} at 90 % and {n} at 95 %; "
                     rf"random {n} at 60 %, {n} at 70 % and {n} at 80 %")
    np.testing.assert_allclose(found, said, atol=1)


@pytest.mark.parametrize("num_steps", [MORE, pytest.param(10 * MORE, marks=pytest.mark.slow)])
def test_the_cubic_makes_no_difference(num_steps):
    once, cubic = ([prune_it(seed, 0.9, num_steps) for seed in SEEDS]
                   for prune_it in (at_once, along_cubic))
    said = page_says(rf"With {num_steps} steps \D+([\d.]+) % \D+([\d.]+) %")
    np.testing.assert_allclose([np.mean(once), np.mean(cubic)], said, atol=1)
    assert abs(np.mean(once) - np.mean(cubic)) < max(np.ptp(once), 1)


def test_gathering_takes_longer():
    model = copy_of(0)
    masks = Masks(model, prune(model, magnitude(prunable_weights(model)), 0.8))
    versions = sparse_versions(model, masks.local_masks()) | {"dense": ModelVersion(0, copy_of(0))}
    found = measure(versions, DATA.train_x[:ROWS])
    gathered, dense = found["kept only, gathered"], found["dense"]
    assert gathered.seconds > 1.5 * dense.seconds and gathered.flops < dense.flops / 4
    says("23", "a fifth of the FLOPs took about 5 times as long")
