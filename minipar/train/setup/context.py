"""Context parallelism of a run: `minipar train --mesh cp=4 --context-method ring`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...launcher import UsageError
from ...parallel.context.attention import METHODS
from ...parallel.context.layout import ContextOptions
from ...parallel.context.token_order import ORDERS, positions_of_ranks
from ..option import option

if TYPE_CHECKING:
    from ..config import TrainConfig

ULYSSES = "ulysses"


@dataclass(frozen=True)
class ContextConfig:
    """With cp in the mesh: how its ranks share the tokens of a sequence."""

    method: str | None = option(
        None, "keys and values travel around a ring, or are gathered first; ulysses: tokens are "
        "exchanged for heads", flag_name="context_method", choices=(*METHODS, ULYSSES),
        default_text="ring", saved=False)
    order: str | None = option(
        None, "the tokens of each rank; zigzag gives all ranks equal work",
        flag_name="context_order", choices=tuple(ORDERS), default_text="zigzag", saved=False)
    ulysses_degree: int | None = option(
        None, "N neighbours exchange tokens for heads, with rings between them", least=1,
        metavar="N", default_text="1", saved=False)


def context_options(config: "TrainConfig", sizes: Mapping[str, int]) -> ContextOptions | None:
    """How the ranks of cp share tokens; None if cp has only one."""
    cp, chosen, default = sizes.get("cp", 1), config.context, ContextOptions()
    if cp == 1:
        return None
    order = chosen.order or default.order
    if chosen.method == ULYSSES:
        return ContextOptions(order=order, ulysses=cp)
    return ContextOptions(chosen.method or default.method, order, chosen.ulysses_degree or 1)


def check_context(config: "TrainConfig", sizes: Mapping[str, int]) -> None:
    """Refuse options of context parallelism that do not go with the rest.  Raises UsageError."""
    cp, degree, experts = sizes.get("cp", 1), config.context.ulysses_degree, config.experts
    for name in ("context_method", "context_order", "ulysses_degree"):
        if config.get(name) is not None and cp == 1:
            raise UsageError(f"--{name.replace('_', '-')} says how the ranks of cp share tokens: "
                             "add cp to the mesh, for example --mesh cp=2, or leave it out")
    if cp == 1:
        return
    if config.data.source == "digits":
        raise UsageError("--mesh cp spreads a text's tokens, but --data digits trains an MLP, "
                         "which has no tokens: choose dp")
    if degree is not None:
        if config.context.method == ULYSSES:
            raise UsageError("--context-method ulysses exchanges heads over all ranks of cp: leave "
                             "--ulysses-degree out, or choose --context-method ring")
        if cp % degree:
            raise UsageError(f"--ulysses-degree {degree} does not divide the {cp} "
                             "ranks of cp: choose a divisor")
    if config.parallel.sequence_parallel:
        check_beside_sequence_parallelism(config, sizes)
    if experts.num_experts and (experts.balance_loss or experts.z_loss
                                or experts.capacity_factor is not None):
        raise UsageError("balance and z losses and capacities of experts are counted by sequence, "
                         "and --mesh cp cuts sequences: say --balance-loss 0 --bias-rate 0.001, "
                         "and leave --z-loss and --capacity-factor out")


def check_beside_sequence_parallelism(config: "TrainConfig", sizes: Mapping[str, int]) -> None:
    """Refuse a context whose parts tp does not divide.  Raises UsageError."""
    cp, tp, options = sizes["cp"], sizes["tp"], context_options(config, sizes)
    assert options is not None          # there is a cp
    blocks = positions_of_ranks(options.order, config.model.context, cp // options.ulysses)
    if any(len(block) % (options.ulysses * tp) for block in blocks):
        raise UsageError(f"--sequence-parallel splits the tokens of each rank of cp over {tp} "
                         "ranks of tp, which do not divide: choose a --context that is a multiple "
                         f"of {2 * cp * tp}")
