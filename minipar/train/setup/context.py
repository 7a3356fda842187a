"""Context parallelism of a run: `minipar train --mesh cp=4 --context-method ring`."""

from collections.abc import Mapping

from ...launcher import UsageError
from ...parallel.context import attention
from ...parallel.context.rank_groups import ContextOptions
from ...parallel.context.token_order import positions_of_ranks
from ..config import TrainConfig

ULYSSES = "ulysses"
METHODS = (*attention.METHODS, ULYSSES)


def context_options(config: TrainConfig, sizes: Mapping[str, int]) -> ContextOptions | None:
    """How the ranks of cp share tokens; None if cp has only one rank."""
    cp, chosen, default = sizes.get("cp", 1), config.context, ContextOptions()
    if cp == 1:
        return None
    order = chosen.order or default.order
    if chosen.method == ULYSSES:
        return ContextOptions(order=order, ulysses=cp)
    return ContextOptions(chosen.method or default.method, order, chosen.ulysses_degree or 1)


def check_context(config: TrainConfig, sizes: Mapping[str, int]) -> None:
    """Refuse options of context parallelism that do not go with the rest.  Raises UsageError."""
    cp, degree, experts = sizes.get("cp", 1), config.context.ulysses_degree, config.experts
    if cp == 1:
        return
    if config.data.source == "digits":
        raise UsageError("--mesh cp spreads a text's tokens, but --data digits trains an MLP, "
                         "which has no tokens: choose dp")
    if degree is not None:
        if config.context.method == ULYSSES:
            raise UsageError("--context-method ulysses exchanges heads over all ranks of cp: leave "
                             "context.ulysses_degree out, or choose --context-method ring")
        if cp % degree:
            raise UsageError(f"context.ulysses_degree={degree} does not divide the {cp} "
                             "ranks of cp: choose a divisor")
    if config.parallel.sequence_parallel:
        check_beside_sequence_parallelism(config, sizes)
    if experts.num_experts and (experts.balance_loss or experts.z_loss
                                or experts.capacity_factor is not None):
        raise UsageError("balance and z losses and capacities of experts are counted by sequence, "
                         "and --mesh cp cuts sequences: --set experts.balance_loss=0 and "
                         "experts.bias_rate=0.001, and leave z_loss and capacity_factor out")


def check_beside_sequence_parallelism(config: TrainConfig, sizes: Mapping[str, int]) -> None:
    """Refuse a context whose tokens on each rank of cp cannot be split over tp.  UsageError."""
    cp, tp, options = sizes["cp"], sizes["tp"], context_options(config, sizes)
    assert options is not None          # cp has several ranks
    blocks = positions_of_ranks(options.order, config.model.context, cp // options.ulysses)
    if any(len(block) % (options.ulysses * tp) for block in blocks):
        raise UsageError(f"--sequence-parallel splits the tokens of each rank of cp over {tp} "
                         "ranks of tp, which do not divide: choose a --context that is a multiple "
                         f"of {2 * cp * tp}")
