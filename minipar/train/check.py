"""Every mistake in a configuration that can be found before the ranks start.

    checked(config)             values, and what goes together; then the defaults that follow
    check_machine(config)       folders that can be written to, a GPU that is there
    num_ranks_of(config)        the ranks of mpirun, of --ranks or of --mesh

Each raises a UsageError, one line, for what cannot work.
"""

import math
import tempfile
from pathlib import Path

from ..environment import launched
from ..launcher import UsageError
from ..parallel.registry import strategies_with
from .config import OPTIONS, TrainConfig
from .option import OptionField, one_of
from .setup.device import check_device, check_gpu
from .setup.memory import check_memory, check_offload_folder
from .setup.precision import check_precision
from .setup.strategy import check_mesh, num_mesh_ranks

MOST_SIMULATED = 4096       # ranks, each with its part of the model, in one process


def checked(config: TrainConfig) -> TrainConfig:
    """The configuration with the defaults that follow from other options.  Raises UsageError."""
    for field in OPTIONS.values():
        check_value(field, config.get(field.key))
    check_strategy(config)
    check_mesh(config)
    check_memory(config)
    check_precision(config)
    check_device(config)
    run, optimizer = config.run, config.optimizer
    if run.sample and config.data.source == "digits":
        raise UsageError("--sample generates text, but --data digits trains a classifier: "
                         "leave --sample out")
    follows = {}
    if run.out is None and run.resume is not None and run.resume.is_dir():
        follows["out"] = run.resume             # the run goes on where it is
    elif run.save_every and run.out is None:
        raise UsageError("--save-every needs a folder: add --out DIR")
    if optimizer.lr is None:
        follows["lr"] = 0.1 if optimizer.name == "sgd" else 3e-3
    if optimizer.warmup is None:
        follows["warmup"] = run.steps // 10
    elif optimizer.warmup >= run.steps and optimizer.warmup:
        raise UsageError(f"--warmup {optimizer.warmup} must be less than --steps {run.steps}")
    return config.updated(**follows)


def check_value(field: OptionField, value: object) -> None:
    """Refuse a value of another type, of no known choice, or too small.  Raises UsageError."""
    if value is None and field.is_optional:
        return
    option, kinds = field.option, (int, float) if field.kind is float else (field.kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and field.kind is not bool):
        raise UsageError(f"{field.flag} takes {field.kind.__name__}, not {value!r}")
    if option.choices and value not in option.choices:
        raise UsageError(f"{field.flag}: invalid choice: {value!r} (choose from "
                         f"{', '.join(option.choices)})")
    if option.least is None:
        return
    if field.kind is int and value < option.least:
        raise UsageError(f"{field.flag} must be at least {option.least}, not {value}")
    if not option.least <= value < math.inf:
        raise UsageError(f"{field.flag} must be a number >= {option.least:g}, not {value}")


def check_strategy(config: TrainConfig) -> None:
    """Refuse options that the strategy has no use for.  Raises UsageError."""
    parallel = config.parallel
    if parallel.bucket_mb is not None and not 0 < parallel.bucket_mb < math.inf:
        raise UsageError("--bucket-mb takes a number of megabytes > 0, not "
                         f"{parallel.bucket_mb:g}: for example --bucket-mb 1")
    for name in ("bucket_mb", "hybrid_shard"):
        if config.get(name) is not None and parallel.strategy not in strategies_with(name):
            raise UsageError(f"--{name.replace('_', '-')} needs --strategy "
                             f"{one_of(strategies_with(name))}, not {parallel.strategy}: "
                             "leave it out, or choose a strategy that takes it")


def check_machine(config: TrainConfig) -> None:
    """Find out before the training whether this machine can do it.  Raises UsageError."""
    check_gpu(config)
    check_offload_folder(config)
    if config.run.out is not None:
        check_folder(config.run.out)


def check_folder(folder: Path) -> None:
    """Make the folder of the results, and try to write there.  Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written to ({error.strerror}): give a folder "
                         "that can") from error


def num_ranks_of(config: TrainConfig) -> int:
    """The number of ranks.  Raises UsageError if the mesh, or shards, do not fit them."""
    world, ranks = launched(), config.run.ranks
    mesh, hybrid_shard = config.parallel.mesh, config.parallel.hybrid_shard
    if world and ranks is not None:
        raise UsageError(f"--ranks simulates ranks without mpirun, but {world} started "
                         f"{world.size}: leave one of the two out")
    given = world.size if world else ranks
    if given is not None and given < 1:
        raise UsageError(f"--ranks takes a positive whole number, not {given}")
    num_ranks = num_mesh_ranks(mesh) if mesh is not None else given or 1
    if not world and num_ranks > MOST_SIMULATED:
        raise UsageError(f"{num_ranks:,} ranks are more than can be simulated here: choose at most "
                         f"{MOST_SIMULATED:,}")
    if given is not None and given != num_ranks:
        raise UsageError(f"--mesh {mesh} is for {num_ranks} ranks, but there are {given}: "
                         f"say --mesh dp={given}, or start {num_ranks} ranks "
                         f"(mpirun -n {num_ranks} …)")
    if hybrid_shard is not None and num_ranks % hybrid_shard:
        raise UsageError(f"--hybrid-shard {hybrid_shard} does not divide {num_ranks} "
                         f"rank{'s' if num_ranks > 1 else ''}: choose a divisor of {num_ranks}")
    return num_ranks
