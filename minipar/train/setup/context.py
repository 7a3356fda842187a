"""Context parallelism of a run: `minipar train --mesh cp=4 --context-method ring`."""

from collections.abc import Mapping

from ...launcher import UsageError
from ...parallel.context.layout import ContextOptions, positions_of_ranks
from ..config import CONTEXT_METHODS, TrainConfig

FLAGS = ("context_method", "context_order", "ulysses_degree")


def context_options(config: TrainConfig, sizes: Mapping[str, int]) -> ContextOptions | None:
    """How the ranks of cp share tokens; None if cp has only one."""
    cp, parallel = sizes.get("cp", 1), config.parallel
    if cp == 1:
        return None
    method = parallel.context_method or CONTEXT_METHODS[0]
    order = parallel.context_order or ContextOptions().order
    if method == "ulysses":
        return ContextOptions(order=order, ulysses=cp)
    return ContextOptions(method, order, parallel.ulysses_degree or 1)


def check_context(config: TrainConfig, sizes: Mapping[str, int]) -> None:
    """Refuse options of context parallelism that do not go with the rest.  Raises UsageError."""
    cp, parallel, experts = sizes.get("cp", 1), config.parallel, config.experts
    for name in FLAGS:
        if config.get(name) is not None and cp == 1:
            raise UsageError(f"--{name.replace('_', '-')} says how the ranks of cp share tokens: "
                             "add cp to the mesh, for example --mesh cp=2, or leave it out")
    if cp == 1:
        return
    if config.data.source == "digits":
        raise UsageError("--mesh cp spreads a text's tokens, but --data digits trains an MLP, "
                         "which has no tokens: choose dp")
    if parallel.ulysses_degree is not None:
        if parallel.context_method == "ulysses":
            raise UsageError("--context-method ulysses exchanges heads over all ranks of cp: leave "
                             "--ulysses-degree out, or choose --context-method ring")
        if cp % parallel.ulysses_degree:
            raise UsageError(f"--ulysses-degree {parallel.ulysses_degree} does not divide the {cp} "
                             "ranks of cp: choose a divisor")
    if parallel.sequence_parallel:
        check_beside_sequence_parallelism(config, sizes)
    if experts.num_experts and (experts.balance_loss or experts.z_loss
                                or experts.capacity_factor is not None):
        raise UsageError("balance and z losses and capacities of experts are counted by sequence, "
                         "and --mesh cp cuts sequences: say --balance-loss 0 --bias-rate 0.001, "
                         "and leave --z-loss and --capacity-factor out")


def check_beside_sequence_parallelism(config: TrainConfig, sizes: Mapping[str, int]) -> None:
    """Refuse a context whose parts tp does not divide.  Raises UsageError."""
    cp, tp, options = sizes["cp"], sizes["tp"], context_options(config, sizes)
    assert options is not None          # there is a cp
    blocks = positions_of_ranks(options.order, config.model.context, cp // options.ulysses)
    if any(len(block) % (options.ulysses * tp) for block in blocks):
        raise UsageError(f"--sequence-parallel splits the tokens of each rank of cp over {tp} "
                         "ranks of tp, which do not divide: choose a --context that is a multiple "
                         f"of {2 * cp * tp}")
