"""`minipar train --remat sqrt`: what is computed again in backward, instead of kept.

    none           nothing              selective    attention's probabilities
    full           every block          every:2      segments of two blocks
    sqrt           √L segments
    optimal:64MB   the fewest FLOPs with at most so many bytes of activations on each rank

None of these changes a gradient: they take FLOPs, and give memory.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...autograd import Tensor, tanh
from ...backend import Array
from ...backend.shape_array import ShapeArray
from ...comm import Communicator
from ...comm.collectives import all_reduce, chunk_bounds
from ...comm.mesh import DeviceMesh
from ...launcher import UsageError
from ...memory.remat.optimal import DoesNotFit, optimal
from ...memory.remat.plans import Plan, Policy, rematerialize, rematerialize_attention
from ...memory.remat.policies import OptimalPolicy, parse_bytes, plan_policy
from ...memory.remat.profile import ChainProfile, profile_parts
from ...nn import MLP, Module
from ...nn.chain import ChainPart, chain
from ...parallel.hybrid import along
from ...parallel.pipeline import make_schedule
from ...parallel.pipeline.schedule.metrics import in_flight
from ...parallel.pipeline.stages import cut_evenly
from ...plan.rematerialization import layer_messages, layer_messages_again
from ...random import training_step
from .strategy import num_microbatches, sizes_of

NAMES = "none, selective, full, every:2, sqrt or optimal:64MB"


def add_remat_argument(group: Any) -> None:
    """The option, in a group of a parser."""
    group.add_argument("--remat", default="none",
                       metavar="none|selective|full|every:K|sqrt|optimal:SIZE",
                       help="what backward computes again, and forward does not keep: attention's "
                            "probabilities, every block, segments of K blocks, √L segments, or as "
                            "little as fits into so many bytes of activations (none)")


def check_remat(options: argparse.Namespace) -> None:
    """Refuse what is no plan.  Raises UsageError."""
    if options.remat == "selective":
        if options.data == "digits":
            raise UsageError("--remat selective computes attention again, but --data digits trains "
                             "an MLP, which has none: choose full, every:2, sqrt or optimal:1MB")
        return
    if options.remat.startswith("optimal:"):
        try:
            budget_of(options)
        except ValueError as error:
            raise UsageError(f"--remat {options.remat}: {error}") from error
        return
    try:
        plan_policy(options.remat)
    except ValueError as error:
        raise UsageError(f"--remat takes {NAMES}, not {options.remat!r}") from error


def budget_of(options: argparse.Namespace) -> int:
    """Bytes of --remat optimal.  Raises ValueError for what is no number of bytes."""
    return parse_bytes(options.remat.removeprefix("optimal:"))


def check_budget(options: argparse.Namespace, model: Module, inputs: Array,
                 num_ranks: int) -> None:
    """Refuse a budget that no plan keeps, before there are ranks; with tp, these find out.

    `model` without numbers, `inputs` of a batch: planned is the first microbatch, the largest, of
    each rank of a pipeline, on arrays that are shapes only.
    """
    sizes = sizes_of(options)
    if not options.remat.startswith("optimal:") or sizes.get("tp", 1) > 1:
        return
    rows, pp = len(inputs), sizes.get("pp", 1)
    for pieces in (num_ranks // pp, num_microbatches(options)):
        (start, stop), *_ = chunk_bounds(rows, pieces)
        rows = stop - start
    model.initialize(array=ShapeArray((), np.dtype(options.dtype)))
    parts, x = chain(model), ShapeArray((rows, *inputs.shape[1:]), inputs.dtype)
    if isinstance(model, MLP) and pp == 1:
        x = Tensor(x)                           # as MLP.logits has it
    with training_step(0, 0, range(rows)):
        costs = profile_parts(parts, x, tanh, model.parameters())
    placement = make_schedule(*schedule_of(options))[1] if pp > 1 else [0]
    cuts = cut_evenly([part.num_parameters() for part in parts], len(placement))
    needs = []
    for rank, start, stop in zip(placement, [0, *cuts], [*cuts, len(parts)]):
        stage = ChainProfile(costs.parts[start:stop], costs.loss if stop == len(parts) else 0)
        num_shares = shares(options, rank)
        try:
            optimal(stage, budget_of(options) // num_shares)
        except DoesNotFit as error:
            needs.append((num_shares * error.least, num_shares))
    if needs:
        raise too_small(options, *max(needs))


def schedule_of(options: argparse.Namespace) -> tuple:
    """What `make_schedule` takes for the pipeline of the options."""
    return (options.schedule or "1f1b", sizes_of(options)["pp"], num_microbatches(options),
            options.virtual_stages)


def shares(options: argparse.Namespace, pp_rank: int) -> int:
    """How many microbatches share the memory of a rank of the pipeline, if there is one."""
    if sizes_of(options).get("pp", 1) == 1:
        return 1
    return max(in_flight(make_schedule(*schedule_of(options))[0][pp_rank]))


def too_small(options: argparse.Namespace, least: int, num_shares: int) -> UsageError:
    """What is said of a budget that no plan keeps."""
    sharing = (f" of a rank, which has {num_shares} microbatches in flight,"
               if num_shares > 1 else "")
    return UsageError(f"--remat {options.remat}: the activations{sharing} take "
                      f"{least:,} bytes, whatever is computed again: give as "
                      "much, or a smaller --batch")


class Noted:
    """A policy that remembers its plans, by the names of the parts they are for."""

    def __init__(self, policy: Policy):
        self.policy, self.plans = policy, {}

    def __call__(self, parts: Sequence[ChainPart]) -> Plan:
        """See the policy."""
        plan = self.plans[tuple([part.name for part in parts])] = self.policy(parts)
        return plan


class Budget(OptimalPolicy):
    """Best plans with so many bytes for all microbatches that a rank has in flight.

    Each gets an equal share.  Ranks of one stage of a pipeline have the same plan.
    """

    def __init__(self, options: argparse.Namespace, comm: Communicator):
        self.options, self.num_shares, self.peers = options, 1, comm
        if sizes_of(options).get("pp", 1) > 1:
            mesh = DeviceMesh(comm, **sizes_of(options))
            self.peers = along(mesh, *(axis for axis in mesh.axes if axis != "pp"))
            self.num_shares = shares(options, mesh.coordinate("pp"))
        super().__init__(budget_of(options) // self.num_shares, self._agree)

    def _agree(self, array: Array) -> Array:
        with self.peers.labelled("control"):
            return all_reduce(self.peers, array, op="max")

    def profile(self, model: Module, parts: Sequence[ChainPart], x: Any) -> None:
        """See OptimalPolicy.  Raises UsageError."""
        try:
            super().profile(model, parts, x)
        except DoesNotFit as error:
            least = self.num_shares * error.least
            raise too_small(self.options, least, self.num_shares) from error


def rematerialized(options: argparse.Namespace, model: Module, comm: Communicator) -> Module:
    """The model, changed: it computes again what the options say.

    All ranks call it, before a strategy takes the model.
    """
    if options.remat == "selective":
        return rematerialize_attention(model)
    if options.remat == "none":
        return model
    optimal = options.remat.startswith("optimal:")
    model.policy = Budget(options, comm) if optimal else Noted(plan_policy(options.remat))
    return rematerialize(model, model.policy)


def wider(options: argparse.Namespace) -> str:
    """The --remat of the same run in float64: a budget grows as its numbers do."""
    if not options.remat.startswith("optimal:") or options.dtype == "float64":
        return options.remat
    bytes_now = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}[options.precision]
    return f"optimal:{8 // bytes_now * budget_of(options)}"


def described(options: argparse.Namespace) -> str:
    """In a few words, for a headline; empty if there is nothing to say."""
    return "" if options.remat == "none" else f", remat {options.remat}"


def plans_of(options: argparse.Namespace, model: Module) -> str | None:
    """What this rank computed again, and with which messages; None if there is nothing to say."""
    if not hasattr(model, "policy"):
        return None
    plans = model.policy.plans
    stages = [" ".join(_words(plan, names)) for names, plan in plans.items()]
    text = f"rank 0 computes again what is in brackets: {' | '.join(stages)}"
    if sizes_of(options).get("tp", 1) > 1 and options.data != "digits":
        how = {"dropout": bool(options.dropout), "sequence": options.sequence_parallel}
        what = "all-gathers and reduce-scatters" if options.sequence_parallel else "all-reduces"
        layers = [[name.startswith("h.") for name in names] for names in plans]
        again = sum(layer_messages_again(plan, blocks, **how)
                    for plan, blocks in zip(plans.values(), layers))
        once = sum(map(sum, layers)) * layer_messages(how["sequence"])
        text += f"; of {once} {what} in the forward of its layers {again} are repeated"
    return text


def _words(plan: Plan, names: Sequence[str]) -> list[str]:
    return [names[item] if isinstance(item, int) else f"({' '.join(_words(item, names))})"
            for item in plan]
