"""The strategy of a run: `minipar train --strategy zero1`, and the microbatches it computes."""

from contextlib import nullcontext
from typing import Any

from ...comm import Communicator
from ...comm.mesh import DeviceMesh
from ...launcher import UsageError, errors_as_usage
from ...mixed_precision import PRECISIONS
from ...nn import Module
from ...optim.registry import OPTIMIZERS
from ...parallel.data.ddp import DistributedDataParallel
from ...parallel.data.local_sgd import CODES_MESSAGE
from ...parallel.registry import COMMON, entry_of, make_strategy, strategies_with
from ...parallel.strategy import Strategy
from ..config import OPTIONS, TrainConfig
from ..option import one_of
from .context import context_options
from .mesh import is_hybrid, mesh_sizes
from .precision import activation_format, wire_options

# The options of `minipar train` that are also keyword arguments of a strategy.
STRATEGY_OPTIONS = tuple(key for key in OPTIONS if strategies_with(key))


def check_strategy(config: TrainConfig) -> None:
    """Refuse options that do not go with the strategy.  Raises UsageError."""
    parallel = config.parallel
    with errors_as_usage("--strategy "):
        entry = entry_of(parallel.strategy)
    for name in STRATEGY_OPTIONS:
        if config.get(name) is not None and name not in (*entry.options, *COMMON):
            raise UsageError(f"{OPTIONS[name].flag} needs --strategy "
                             f"{one_of(strategies_with(name))}, not {parallel.strategy}: "
                             "leave it out, or choose a strategy that takes it")
    if entry.kind.steps_within_batch and config.optimizer.clip:
        raise UsageError(f"--strategy {parallel.strategy} clips no gradients, since no stage waits "
                         "for the norm of all: add --clip 0")
    if entry.kind.steps_within_batch and PRECISIONS[config.precision.compute].needs_loss_scale:
        raise UsageError(f"--strategy {parallel.strategy} has no loss scale, since no stage waits "
                         "for the gradients of all: choose another --precision than "
                         f"{config.precision.compute}")
    if not issubclass(entry.kind, DistributedDataParallel) and \
            config.precision.reduce_dtype != "fp32":
        raise UsageError(f"--strategy {parallel.strategy} sums gradients in no other format: leave "
                         "--reduce-dtype out, or choose ddp")
    if parallel.local_states == "averaged" and OPTIMIZERS[config.optimizer.name].kind.has_codes:
        raise UsageError(f"--set parallel.{CODES_MESSAGE}")
    per_step = parallel.microbatches_per_step or mesh_sizes(config).get("pp", 1)
    if "microbatches_per_step" in entry.options and num_microbatches(config) % per_step:
        raise UsageError(f"--strategy {parallel.strategy} steps after every {per_step} "
                         "microbatches: give a multiple, not "
                         f"--microbatches {num_microbatches(config)}")
    if config.run.verify and entry.specification is not Strategy:
        raise UsageError(f"--verify compares with one rank, which --strategy {parallel.strategy} "
                         "does not equal: leave it out")


def num_microbatches(config: TrainConfig) -> int:
    """The number of microbatches into which a rank's rows of a batch are cut."""
    if config.parallel.microbatches or config.parallel.accumulate > 1:
        return config.parallel.microbatches or config.parallel.accumulate
    return 2 * mesh_sizes(config).get("pp", 0) or 1


def build_strategy(config: TrainConfig, model: Module, comm: Communicator) -> Strategy:
    """The configured strategy.  Raises UsageError or ValueError for one that cannot be."""
    parallel, sizes = config.parallel, mesh_sizes(config)
    given: dict[str, Any] = {name: config.get(name) for name in STRATEGY_OPTIONS}
    if is_hybrid(config):
        given |= {"schedule": parallel.schedule, "virtual_stages": parallel.virtual_stages,
                  "sequence_parallel": parallel.sequence_parallel or None,
                  "context": context_options(config, sizes),
                  "activation_format": activation_format(config)}
    options = {name: value for name, value in given.items() if value is not None}
    with errors_as_usage(f"--mesh {parallel.mesh}: ") if sizes else nullcontext():
        return make_strategy(parallel.strategy, model, DeviceMesh(comm, **sizes) if sizes else comm,
                             **options, **wire_options(config))


def describe_strategy(config: TrainConfig) -> str:
    """The strategy in a few words, for a headline."""
    if not is_hybrid(config):
        return config.parallel.strategy
    words = [config.parallel.mesh, config.parallel.strategy]
    if "pp" in mesh_sizes(config):
        words += [config.parallel.schedule or "1f1b", f"{num_microbatches(config)} microbatches"]
    context = context_options(config, mesh_sizes(config))
    if context is not None:
        # for ulysses `context` says "ring", with rings of one rank each
        words += [config.context.method or context.method, context.order]
    return ", ".join(words + ["sequence parallel"] * config.parallel.sequence_parallel)
