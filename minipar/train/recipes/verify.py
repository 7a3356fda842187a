"""--verify: the first steps on all ranks, in float64, beside the same steps on one rank.

    one rank    loss, gradients ─┐ broadcast            parameters ─┐ broadcast
    each rank   loss, gradients ─┴▶ compare ─▶ step ─▶ parameters ──┴▶ compare

The gradients are compared before clipping and the optimizer: Adam's step is the same for gradients
p times too large.  Every rank compares what it has of each parameter: its shard, its box, or all.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ...backend import Array, to_host
from ...comm import Communicator
from ...comm.collectives import all_gather, broadcast
from ...nn import Parameter
from ...nn.slab import Segment
from ...parallel.data.classic_data_parallel import DataParallel
from ...parallel.strategy import Strategy
from ..config import TrainConfig
from ..loop import TrainState, check_finite, compute_gradients, update_parameters
from ..setup.precision import FULL_PRECISION
from ..setup.remat import remat_in_float64
from ..start import start_run
from ..tasks import make_task

ROUNDING_ERROR = 1e-10  # relative; in float64 rounding makes no larger difference

# What a rank has of a named array: its values, and the function that takes this part of the whole.
Part = tuple[str, Array, Callable[[np.ndarray], np.ndarray]]


class Comparison(NamedTuple):
    """The largest difference from one rank that was found, and where.

    `distance` is relative to the largest number of its kind: the loss, the gradients or the
    parameters of that step.  `place` names step, array and ranks.
    """

    distance: float
    place: str

    @property
    def is_same(self) -> bool:
        """True if rounding makes such a difference."""
        return self.distance < ROUNDING_ERROR


def compare_with_one_rank(comm: Communicator, config: TrainConfig) -> Comparison:
    """Collective.  Compare the first --verify steps with those of one rank; end at a difference.

    Every rank returns the largest difference.  Raises UsageError if the loss of one rank is not
    finite.
    """
    config = config.updated(dtype="float64", steps=config.run.verify, warmup=0, resume=None,
                            out=None, save_every=0, memory_limit=None,
                            remat=remat_in_float64(config), **FULL_PRECISION)
    many = start_run(comm, config, make_task(config))
    whole = many.strategy.state_dict()          # every rank learns all names and shapes
    alone = comm.split(comm.rank)
    one = None
    if comm.rank == 0:
        plain = config.updated(strategy="ddp", accumulate=1, hybrid_shard=None, mesh=None,
                               microbatches=None, offload="", remat="none")
        one = start_run(alone, plain, make_task(plain))
    worst = Comparison(0.0, "")
    for step in range(config.run.steps):
        for found in compare_step(comm, many, one, step, whole):
            worst = max(worst, found)
            if not found.is_same:
                return found
    return worst


def compare_step(comm: Communicator, many: TrainState, one: TrainState | None, step: int,
                 whole: Mapping[str, np.ndarray]) -> Iterator[Comparison]:
    """Collective.  Take a step; compare the loss, then the gradients, then the parameters.

    `one` is the run on one rank, on rank 0.
    """
    loss, right = compute_gradients(many, step), np.zeros(1)
    if one is not None:
        right[0] = compute_gradients(one, step)
    right = broadcast(comm, right)
    check_finite(many, float(right[0]), step)
    yield compare(comm, f"at step {step} the loss", {"": right}, {"": right},
                  [("", np.array([loss]), lambda losses: losses)])
    yield compare(comm, f"at step {step} the gradient of ", whole, one and gradients(one.strategy),
                  gradient_parts(many.strategy))
    for state in (many, one):
        if state is not None:
            update_parameters(state, step)
    yield compare(comm, f"after step {step} the parameter ", whole,
                  one and one.strategy.state_dict(), parameter_parts(many.strategy))


def gradients(strategy: Strategy) -> dict[str, np.ndarray]:
    """A host copy of every gradient by its parameter's name, on one rank."""
    return strategy.slabs.gradients()


def gradient_parts(strategy: Strategy) -> list[Part]:
    """The gradients that this rank gives to its optimizer."""
    if isinstance(strategy, DataParallel) and strategy.comm.rank:
        return []                               # rank 0 alone has gradients and an optimizer
    return [part_of(segment, values) for slab in strategy.slabs
            for values in [slab.complete_grad()] for segment in slab.segments]


def parameter_parts(strategy: Strategy) -> list[Part]:
    """The parameters that this rank has after a step: in its slabs, and gathered in the model."""
    if isinstance(strategy, DataParallel) and strategy.comm.rank:
        return []                               # they come with the next forward
    return [*(part_of(segment, slab.data) for slab in strategy.slabs for segment in slab.segments),
            *((name, parameter.data, local_part(parameter))
              for name, parameter in strategy.model.named_parameters() if parameter.initialized)]


def part_of(segment: Segment, values: Array) -> Part:
    """The part that a segment of `values`, an array of a slab, has of a parameter."""
    return segment.name, values[segment.start:segment.stop], segment.local_part


def local_part(parameter: Parameter) -> Callable[[np.ndarray], np.ndarray]:
    """The function that takes this rank's part of a whole parameter."""
    return parameter.local_part


def compare(comm: Communicator, what: str, whole: Mapping[str, np.ndarray],
            right: Mapping[str, np.ndarray] | None, parts: list[Part]) -> Comparison:
    """Collective.  The largest difference of any rank's `parts` from the `right` arrays of rank 0.

    `whole` has arrays of the same names and shapes on every rank.
    """
    names, scale = sorted(whole), 0.0
    differences = dict.fromkeys(names, 0.0)             # of this rank
    for name in names:
        array = broadcast(comm, whole[name] if right is None else right[name])
        scale = max(scale, float(np.max(np.abs(array), initial=0.0)))
        for _, values, take in (part for part in parts if part[0] == name):
            apart = np.abs(to_host(values).ravel() - take(array).ravel())
            worst = float(np.max(apart, initial=0.0))
            differences[name] = max(differences[name], np.inf if np.isnan(worst) else worst)
    here = np.array([differences[name] for name in names]) / (scale or 1.0)
    all_ranks = all_gather(comm, here).reshape(comm.size, len(names))
    worst_of = all_ranks.max(axis=0)
    i = int(np.argmax(worst_of))
    ranks = np.flatnonzero(~(all_ranks[:, i] < ROUNDING_ERROR))         # NaN is a difference, too
    more = int(np.sum(~(worst_of < ROUNDING_ERROR))) - 1
    return Comparison(float(worst_of[i]), f"{what}{names[i]} on rank{'s' * (len(ranks) != 1)} "
                      f"{', '.join(map(str, ranks))}"
                      + (f" (and, by less, of {more} more parameters)" if more > 0 else ""))
