"""`minipar train --remat sqrt`: what backward recomputes because forward did not keep it.

    none           nothing              selective    attention's probabilities
    full           every block          every:2      segments of two blocks
    sqrt           √L segments
    optimal:64MB   the fewest FLOPs with at most 64 MB of activations on each rank

None of these changes a gradient: they trade FLOPs for memory.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...autograd import Tensor, tanh
from ...backend import Array
from ...backend.shape_array import ShapeArray
from ...comm import Communicator
from ...comm.collectives import all_reduce, chunk_bounds
from ...comm.mesh import DeviceMesh
from ...launcher import UsageError, errors_as_usage
from ...memory.remat.optimal import DoesNotFit, optimal
from ...memory.remat.plans import Plan, Policy, rematerialize
from ...memory.remat.policies import OptimalPolicy, parse_bytes, plan_policy
from ...memory.remat.profile import ChainProfile, profile_parts
from ...memory.remat.selective import rematerialize_attention
from ...mixed_precision import PRECISIONS
from ...nn import MLP, Module
from ...nn.chain import chain
from ...nn.module import ChainPart
from ...nn.step_context import training_step
from ...parallel.cost.rematerialization import layer_messages, layer_messages_again
from ...parallel.pipeline.cut_points import cut_evenly
from ...parallel.pipeline.schedule.metrics import in_flight
from ...parallel.pipeline.schedule.registry import make_schedule
from ..config import TrainConfig
from .mesh import mesh_sizes
from .strategy import num_microbatches

NAMES = "none, selective, full, every:2, sqrt or optimal:64MB"


def check_remat(config: TrainConfig) -> None:
    """Refuse a --remat that names no plan.  Raises UsageError."""
    if config.memory.remat == "selective":
        if config.data.source == "digits":
            raise UsageError("--remat selective computes attention again, but --data digits trains "
                             "an MLP, which has none: choose full, every:2, sqrt or optimal:1MB")
        return
    if config.memory.remat.startswith("optimal:"):
        with errors_as_usage(f"--remat {config.memory.remat}: "):
            budget_of(config)
        return
    try:
        plan_policy(config.memory.remat)
    except ValueError as error:
        raise UsageError(f"--remat takes {NAMES}, not {config.memory.remat!r}") from error


def budget_of(config: TrainConfig) -> int:
    """The bytes of --remat optimal:SIZE.  Raises ValueError for a text that is no size."""
    return parse_bytes(config.memory.remat.removeprefix("optimal:"))


def check_budget(config: TrainConfig, model: Module, inputs: Array,
                 num_ranks: int) -> None:
    """Refuse a budget of bytes that no plan meets, before the ranks start.  Raises UsageError.

    It plans the largest microbatch of a batch like `inputs`, on each rank of a pipeline, with
    arrays that are shapes only.  With tp or cp it checks nothing: the ranks find out themselves.
    """
    sizes = mesh_sizes(config)
    splits_layers = sizes.get("tp", 1) * sizes.get("cp", 1) > 1
    if not config.memory.remat.startswith("optimal:") or splits_layers:
        return
    rows, pp = len(inputs), sizes.get("pp", 1)
    for pieces in (num_ranks // pp, num_microbatches(config)):
        (start, stop), *_ = chunk_bounds(rows, pieces)
        rows = stop - start
    model.initialize(array=ShapeArray((), np.dtype(config.precision.dtype)))
    parts, x = chain(model), ShapeArray((rows, *inputs.shape[1:]), inputs.dtype)
    if isinstance(model, MLP) and pp == 1:
        x = Tensor(x)                           # as MLP.logits does
    with training_step(0, 0, range(rows), shares=ShapeArray((rows,), np.dtype(np.float64))):
        costs = profile_parts(parts, x, tanh, model.parameters())
    placement = make_schedule(*schedule_of(config))[1] if pp > 1 else [0]
    cuts = cut_evenly([part.num_parameters() for part in parts], len(placement))
    needs = []
    for rank, start, stop in zip(placement, [0, *cuts], [*cuts, len(parts)]):
        stage = ChainProfile(costs.parts[start:stop], costs.loss_bytes if stop == len(parts) else 0)
        num_in_flight = max_in_flight(config, rank)
        try:
            optimal(stage, budget_of(config) // num_in_flight)
        except DoesNotFit as error:
            needs.append((num_in_flight * error.least, num_in_flight))
    if needs:
        raise budget_too_small_error(config, *max(needs))


def schedule_of(config: TrainConfig) -> tuple:
    """The arguments of `make_schedule` for the configured pipeline."""
    return (config.parallel.schedule or "1f1b", mesh_sizes(config)["pp"], num_microbatches(config),
            config.parallel.virtual_stages)


def max_in_flight(config: TrainConfig, pp_rank: int) -> int:
    """The largest number of microbatches whose activations a rank of the pipeline keeps at once."""
    if mesh_sizes(config).get("pp", 1) == 1:
        return 1
    return max(in_flight(make_schedule(*schedule_of(config))[0][pp_rank]))


def budget_too_small_error(config: TrainConfig, least: int, num_in_flight: int) -> UsageError:
    """The error for a budget that no plan meets."""
    sharing = (f" of a rank, which has {num_in_flight} microbatches in flight,"
               if num_in_flight > 1 else "")
    return UsageError(f"--remat {config.memory.remat}: the activations{sharing} take "
                      f"{least:,} bytes, however much is recomputed: give as "
                      "much, or a smaller --batch")


class PlanRecorder:
    """A policy that makes the plans of `policy`, and records them by the names of the parts."""

    def __init__(self, policy: Policy):
        self.policy = policy
        self.plans: dict[tuple[str, ...], Plan] = {}

    def __call__(self, parts: Sequence[ChainPart]) -> Plan:
        """The plan of `policy`."""
        plan = self.plans[tuple([part.name for part in parts])] = self.policy(parts)
        return plan


class BudgetPolicy(OptimalPolicy):
    """The best plans within the bytes of --remat optimal, for all microbatches in flight.

    Each microbatch gets an equal share of the budget.  Ranks of one stage of a pipeline have the
    same plan.
    """

    def __init__(self, config: TrainConfig, comm: Communicator):
        self.config, self.num_in_flight, self.peers = config, 1, comm
        if mesh_sizes(config).get("pp", 1) > 1:
            mesh = DeviceMesh(comm, **mesh_sizes(config))
            others = tuple(axis for axis in mesh.axes if axis != "pp")
            self.peers = mesh[others] if others else comm.split(comm.rank)
            self.num_in_flight = max_in_flight(config, mesh.coordinate("pp"))
        super().__init__(budget_of(config) // self.num_in_flight, self._agree)

    def _agree(self, array: Array) -> Array:
        with self.peers.labelled("control"):
            return all_reduce(self.peers, array, op="max")

    def profile(self, model: Module, parts: Sequence[ChainPart], x: Any) -> None:
        """Find the best plan of `parts`.  Raises UsageError if none fits."""
        try:
            super().profile(model, parts, x)
        except DoesNotFit as error:
            least = self.num_in_flight * error.least
            raise budget_too_small_error(self.config, least, self.num_in_flight) from error


RecordingPolicy = PlanRecorder | BudgetPolicy        # both have plans by names


def rematerialize_model(config: TrainConfig, model: Module,
                        comm: Communicator) -> RecordingPolicy | None:
    """Collective.  Let the model recompute what the configuration says; return its policy.

    Call it before a strategy takes the model.  Returns None for none and selective, which have no
    policy.
    """
    remat = config.memory.remat
    if remat == "none":
        return None
    if remat == "selective":
        rematerialize_attention(model)
        return None
    policy: RecordingPolicy
    if remat.startswith("optimal:"):
        policy = BudgetPolicy(config, comm)
    else:
        policy = PlanRecorder(plan_policy(remat))
    rematerialize(model, policy)
    return policy


def remat_in_float64(config: TrainConfig) -> str:
    """The --remat of the same run in float64: a budget grows as much as the arrays do."""
    if not config.memory.remat.startswith("optimal:") or config.precision.dtype == "float64":
        return config.memory.remat
    fmt = PRECISIONS[config.precision.compute].inputs
    return f"optimal:{8 // (fmt.dtype.itemsize if fmt else 4) * budget_of(config)}"


def describe_remat(config: TrainConfig) -> str:
    """The plan in a few words, for a headline; "" for none."""
    return "" if config.memory.remat == "none" else f", remat {config.memory.remat}"


def repeated_parts(config: TrainConfig, policy: RecordingPolicy | None) -> str | None:
    """The parts and messages that this rank repeated, in a line; None without a plan."""
    if policy is None:
        return None
    plans, sequence = policy.plans, config.parallel.sequence_parallel
    stages = [" ".join(_words(plan, names)) for names, plan in plans.items()]
    text = f"rank 0 computes again what is in brackets: {' | '.join(stages)}"
    if mesh_sizes(config).get("tp", 1) > 1 and config.data.source != "digits":
        what = "all-gathers and reduce-scatters" if sequence else "all-reduces"
        layers = [[name.startswith("h.") for name in names] for names in plans]
        again = sum(layer_messages_again(plan, blocks, dropout=bool(config.model.dropout),
                                         sequence=sequence)
                    for plan, blocks in zip(plans.values(), layers))
        once = sum(map(sum, layers)) * layer_messages(sequence)
        text += f"; of {once} {what} in the forward of its layers {again} are repeated"
    return text


def _words(plan: Plan, names: Sequence[str]) -> list[str]:
    return [names[item] if isinstance(item, int) else f"({' '.join(_words(item, names))})"
            for item in plan]
