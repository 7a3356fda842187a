"""One training run for every strategy: the models, masks and microbatches, and what it returns.

The batch is cut into microbatches first, and then every microbatch among the ranks.  So a mask hits
the same targets, whatever the number of ranks.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from minipar.autograd import IGNORE_INDEX
from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce, sum_over_ranks
from minipar.comm.mesh import DeviceMesh
from minipar.memory.remat.plans import rematerialize
from minipar.memory.remat.policies import plan_policy
from minipar.memory.remat.selective import rematerialize_attention
from minipar.optim import NO_DECAY_FOR_VECTORS, SGD, AdamW, ParameterGroup
from minipar.optim.whole_tensors.lamb import LAMB
from minipar.optim.whole_tensors.lars import LARS
from minipar.optim.whole_tensors.muon import Muon
from minipar.parallel.context.rank_groups import ContextOptions
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.data.ddp_by_autograd import data_parallel
from minipar.parallel.data.trained_apart import TrainedApart
from minipar.parallel.pipeline.naive import NaiveModelParallel
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.parallel.registry import STRATEGIES as BY_NAME
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy
from tests.support.case_models import DEEP, MODELS, TIME, VOCABULARY

NUM_STEPS, SEED = 2, 5
ONE_PROCESS = [name for name, entry in BY_NAME.items() if entry.specification is Strategy]
APART = [name for name, entry in BY_NAME.items() if issubclass(entry.kind, TrainedApart)]

GROUPS = [NO_DECAY_FOR_VECTORS,
          ParameterGroup(lambda segment: segment.name.startswith(("1.", "h.1.attn")), lr_scale=0.5)]
OPTIMIZERS = {
    "sgd": lambda slabs: SGD(slabs, lr=0.3, momentum=0.9),
    "adamw": lambda slabs: AdamW(slabs, lr=0.01, weight_decay=0.3, groups=GROUPS),
}
OF_WHOLE_TENSORS = {        # in tests of their own
    "muon": lambda slabs: Muon(slabs, lr=0.01, weight_decay=0.3, groups=GROUPS),
    "muon gathered": lambda slabs: Muon(slabs, lr=0.01, groups=GROUPS, exchange="all_gather"),
    "lamb": lambda slabs: LAMB(slabs, lr=0.05, weight_decay=0.3, groups=GROUPS),
    "lars": lambda slabs: LARS(slabs, lr=0.5, weight_decay=0.3, trust=0.1, groups=GROUPS),
}


class OverAll(Strategy):
    """Sums no gradients over the ranks: a graph does."""

    def check_fresh(self):
        pass


def _strategy(name: str, **fixed):
    """A strategy by name; with several buckets, the first one smaller, where it has buckets."""
    if "bucket_mb" in BY_NAME[name].options:
        fixed |= {"bucket_mb": 0.002, "first_bucket_mb": 0.001}
    return lambda model, comm, **options: make_strategy(name, model, comm, **fixed, **options)


def _hybrid_shard(model, comm, **options) -> Strategy:
    """Shards over two neighbours; over all where that does not fit."""
    shard = {} if comm.size % 2 else {"hybrid_shard": 2}
    return make_strategy("fsdp", model, comm, **shard, **options)


STRATEGIES = {
    **{name: _strategy(name) for name in ONE_PROCESS},
    "fsdp hybrid": _hybrid_shard,
    "fsdp kept": _strategy("fsdp", reshard_after_forward=False),
    "fsdp no prefetch": _strategy("fsdp", prefetch=False),
}


def _pipeline(name: str):
    return lambda model, comm: Strategy(model, DeviceMesh(comm, pp=comm.size), schedule=name)


PIPELINES = {"naive": NaiveModelParallel, **{name: _pipeline(name) for name in SCHEDULES}}


def _hybrid_on(sizes: dict[str, int], **options):
    name = options.pop("name", "ddp")
    return lambda model, comm, **more: _strategy(name)(model, DeviceMesh(comm, **sizes), **options,
                                                       **more)


MESHES = {"pp 2 × dp 2": {"pp": 2, "dp": 2}, "pp 2 × tp 2": {"pp": 2, "tp": 2},
          "dp 2 × tp 2": {"dp": 2, "tp": 2}, "pp 2 × cp 2": {"pp": 2, "cp": 2},
          "dp 2 × cp 2": {"dp": 2, "cp": 2}, "cp 2 × tp 2": {"cp": 2, "tp": 2}}
HOW = {"": {}, " zero1": {"name": "zero1"}, " zero2": {"name": "zero2"},
       " zero3": {"name": "zero3"}, " fsdp": {"name": "fsdp"},
       " sequence": {"sequence_parallel": True}}
HYBRIDS = {mesh + how: _hybrid_on(sizes, **options)
           for mesh, sizes in MESHES.items() for how, options in HOW.items()}
CONTEXTS = {        # of cp 4
    "ring": ContextOptions(), "ring contiguous": ContextOptions(order="contiguous"),
    "ring striped": ContextOptions(order="striped"), "all_gather": ContextOptions("all_gather"),
    "Ulysses": ContextOptions(ulysses=4), "Ulysses in a ring": ContextOptions(ulysses=2)}
CONTEXT_PARALLEL = {name: _hybrid_on({"cp": 4}, context=options)
                    for name, options in CONTEXTS.items()}
ALL = {"alone": Strategy, **STRATEGIES, **PIPELINES, **HYBRIDS,
       "graph": lambda model, comm: OverAll(data_parallel(model, comm), comm),
       "ddp one bucket": lambda model, comm: DistributedDataParallel(model, comm)}

REMATS = ("selective", "full", "every:2", "sqrt", "nested", "optimal:40KB")


def nested(parts: Sequence) -> tuple:
    """A plan of two segments in a segment, and the last part for itself."""
    numbers = tuple(range(len(parts)))
    return (((numbers[0],), numbers[1:-1]), numbers[-1]) if len(numbers) > 2 else (numbers,)


def with_remat(model, remat: str, name: str, comm):
    """The model, changed; "optimal" plans are those of all ranks that have the same parts."""
    if remat == "selective":
        return rematerialize_attention(model)
    pp = comm.size if name in PIPELINES else 2 if name.startswith("pp 2") else 1
    agree = partial(all_reduce, comm.split(comm.rank * pp // comm.size), op="max")
    return rematerialize(model, nested if remat == "nested" else plan_policy(remat, agree))


def masked(targets: np.ndarray, mask: str, parts: Sequence[range]) -> np.ndarray:
    """A copy of the targets (rows, time), with IGNORE_INDEX where the mask leaves a target out.

    `parts` are the rows of each microbatch.
    """
    targets, rows = targets.copy(), len(targets)
    if mask == "uneven":
        targets[np.random.default_rng(1).random(targets.shape) < 0.6] = IGNORE_INDEX
    elif mask == "one in the whole batch":
        keep = targets[rows // 2, 2]
        targets[...] = IGNORE_INDEX
        targets[rows // 2, 2] = keep
    elif mask == "none on the first rank":          # nor on the second, mostly
        for part in parts:
            targets[part.start:part.start + (len(part) + 1) // 2] = IGNORE_INDEX
    elif mask == "none in one microbatch":
        part = parts[len(parts) // 2]
        targets[part.start:part.stop if len(parts) > 1 else part.start + 2] = IGNORE_INDEX
    elif mask == "none at all":
        targets[...] = IGNORE_INDEX
    elif mask != "full":
        raise ValueError(f"no mask {mask!r}")
    return targets


MASKS = ("full", "uneven", "one in the whole batch", "none on the first rank",
         "none in one microbatch", "none at all")


class Case(NamedTuple):
    """A training run; `parts` are the numbers of rows of its microbatches."""

    model: str = "gpt tied"
    optimizer: str = "sgd"
    mask: str = "uneven"
    parts: tuple[int, ...] = (10,)
    max_norm: float | None = None
    remat: str = "none"
    time: int = TIME

    def rows_of_parts(self) -> list[range]:
        """The rows of the batch that each microbatch has."""
        stops = np.cumsum(self.parts).tolist()
        return [range(stop - n, stop) for stop, n in zip(stops, self.parts)]

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """All inputs and targets of a step."""
        rows, draw = sum(self.parts), np.random.default_rng(step)
        targets = masked(draw.integers(0, VOCABULARY, (rows, self.time)), self.mask,
                         self.rows_of_parts())
        if self.model.startswith("mlp"):
            return draw.standard_normal((rows, 4)), targets[:, 2]
        return draw.integers(0, VOCABULARY, (rows, self.time)), targets

    def build(self):
        """The model, with numbers."""
        return {**MODELS, **DEEP}[self.model]().initialize(0, np.float64)


def forward_backward_inside_no_sync(strategy: Strategy, batches: list[Microbatch], seed: int,
                              step: int) -> float:
    """`forward_backward`, with every microbatch but the last one inside no_sync()."""
    num_targets = sum_over_ranks(strategy.comm, strategy.count_targets(batches))
    with strategy.no_sync():
        loss = sum(strategy.run_microbatch(batch, num_targets, seed, step)
                   for batch in batches[:-1])
    loss += strategy.run_microbatch(batches[-1], num_targets, seed, step)
    return sum_over_ranks(strategy.comm, float(loss))


def train(comm, name: str, case: Case, at_once: bool = False,
          inside_no_sync: bool = False) -> dict:
    """Two steps: losses, norms, gradients of each step, parameters and optimizer states, by name.

    `at_once`: the whole batch as one microbatch.  `inside_no_sync`: all microbatches but the last
    insist on no_sync(), which `forward_backward` only uses where there is room.
    """
    model = with_remat(case.build(), case.remat, name, comm)
    strategy = (ALL | CONTEXT_PARALLEL)[name](model, comm)
    optimizer = (OPTIMIZERS | OF_WHOLE_TENSORS)[case.optimizer](strategy.slabs)
    found: dict[str, np.ndarray] = {}
    for step in range(NUM_STEPS):
        inputs, targets = case.batch(step)
        parts = [range(len(inputs))] if at_once else case.rows_of_parts()
        batches = []
        for part in parts:
            mine = np.array(part)[list(strategy.rows(len(part)))].astype(int)
            batches.append(Microbatch(inputs[mine], targets[mine], step * len(inputs) + mine))
        optimizer.zero_grad()
        run = forward_backward_inside_no_sync if inside_no_sync else Strategy.forward_backward
        found[f"loss {step}"] = run(strategy, batches, SEED, step)
        if case.max_norm is not None:
            found[f"norm {step}"] = strategy.clip_grad_norm(case.max_norm)
        for key, gradient in strategy.slabs.gradients().items():
            found[f"gradient {step} of {key}"] = gradient
        strategy.step(optimizer)
    return found | strategy.state_dict() | optimizer.state_dict()


@cache
def expected(case: Case) -> dict:
    """What `train` returns on one process that takes the whole batch as one microbatch."""
    return Cluster(1).run(lambda comm: train(comm, "alone", case, at_once=True))[0][0]


def check(world, name: str, case: Case, **options: bool) -> None:
    """The run of strategy `name` equals the one of a single process to 1e-10, on every rank."""
    alone = expected(case)
    world.run(lambda comm: compare(comm, name, train(comm, name, case, **options), alone))


def compare(comm, name: str, found: dict, alone: dict, atol: float = 1e-13) -> None:
    """Assert that strategy `name` gives on this rank what one process gives, to 1e-10."""
    if name == "dp" and comm.rank:              # only rank 0 has gradients and states
        found = {key: value for key, value in found.items()
                 if not key.startswith("gradient") and "/" not in key}
        alone = {key: alone[key] for key in found}
    assert_all_close(found, alone, rtol=1e-10, atol=atol)


def assert_all_close(found: dict, wanted: dict, rtol: float, atol: float) -> None:
    """Assert that both have the same keys, the same shapes and nearly the same numbers.

    All are compared at once: `assert_allclose`, which takes longer than a small model's step, only
    names what differs.
    """
    assert found.keys() == wanted.keys()
    shapes = [(np.shape(found[key]), np.shape(wanted[key])) for key in found]
    one, other = ([np.ravel(values[key]) for key in found] for values in (found, wanted))
    if all(a == b for a, b in shapes) and np.allclose(
            np.concatenate(one), np.concatenate(other), rtol, atol):
        return
    for key, value in found.items():
        np.testing.assert_allclose(value, wanted[key], rtol=rtol, atol=atol, err_msg=key)
