"""Refuse a configuration that cannot work, before the ranks start.

    checked(config)             checks each value, and each combination; adds the defaults
    check_machine(config)       checks that folders can be written to, and that the GPU is there

Each raises a UsageError of one line.  An option's field (`config.py`) declares its type, choices
and limits, and the options that it needs or excludes.  Each file of `setup/` checks the numbers of
what it builds.  `checked` sets the defaults that follow from other options.  `program.train` checks
checkpoints, texts and remat budgets when it reads them.
"""

import math
from pathlib import Path
from typing import Any

from ..launcher import UsageError
from ..optim.registry import OPTIMIZERS
from .config import OPTIONS, TrainConfig
from .option import Beside, CommandOptions, OptionField
from .setup.device import check_gpu
from .setup.mesh import check_mesh, mesh_sizes
from .setup.precision import check_messages, check_precision
from .setup.rank_memory import check_memory, check_offload_folder, try_to_write
from .setup.strategy import check_strategy


def checked(config: TrainConfig) -> TrainConfig:
    """Check the configuration; return it with the defaults that follow from other options.

    Raises UsageError.
    """
    for field in OPTIONS.values():
        check_value(field, config.get(field.key))
    for field in OPTIONS.values():
        check_beside(field, config)
    check_strategy(config)
    check_mesh(config)
    check_memory(config)
    check_precision(config)
    check_messages(config)
    run, optimizer = config.run, config.optimizer
    follows: dict[str, Any] = {}
    if run.out is None and run.resume is not None and run.resume.is_dir():
        follows["out"] = run.resume             # the run goes on in its own folder
    elif run.save_every and run.out is None:
        raise UsageError("--save-every needs a folder: add --out DIR, or leave it out")
    if optimizer.lr is None:
        follows["lr"] = OPTIMIZERS[optimizer.name].lr
    if optimizer.warmup is None:
        follows["warmup"] = run.steps // 10
    elif optimizer.warmup >= run.steps and optimizer.warmup:
        raise UsageError(f"--warmup {optimizer.warmup} must be less than --steps {run.steps}")
    return config.updated(**follows)


def check_value(field: OptionField, value: object) -> None:
    """Refuse a value of a wrong type, an unknown choice, or a number that is too small or large.

    Raises UsageError.
    """
    if (value is None and field.is_optional) or isinstance(value, tuple):
        return
    option, kinds = field.option, (int, float) if field.kind is float else (field.kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and field.kind is not bool):
        kind = "true or false" if field.kind is bool else field.kind.__name__
        raise UsageError(f"{field.flag} takes {kind}, not {value!r}")
    is_class = option.or_class and ":" in str(value)
    if field.table and value not in field.table and not is_class:
        more = ", or give FILE.py:CLASS" if option.or_class else ""
        raise UsageError(f"{field.flag}: invalid choice: {value!r} (choose from "
                         f"{', '.join(field.table)}{more})")
    if option.most is not None and value > option.most:
        raise UsageError(f"{field.flag} must be at most {option.most:,}, not {value:,}")
    if option.least is None:
        return
    if field.kind is int and value < option.least:
        raise UsageError(f"{field.flag} must be at least {option.least:,}, not {value:,}")
    if not option.least <= value < math.inf:
        raise UsageError(f"{field.flag} must be a number >= {option.least:g}, not {value}")


def check_beside(field: OptionField, chosen: TrainConfig | CommandOptions) -> None:
    """Refuse an option that is given without what it needs, or beside what it excludes.

    Raises UsageError.
    """
    if not chosen.gives(field.key):
        return
    for excluded in field.option.without:
        if chosen.get(excluded.key) == excluded.value if excluded.value \
                else chosen.gives(excluded.key):
            raise UsageError(f"{field.flag} {excluded.why}, which does not go with "
                             f"{words_of(excluded, chosen)}: leave one of the two out")
    needed = field.option.needs
    if needed and not is_given(needed, chosen):
        mend = f"add {needed.value} to the mesh, for example --mesh {needed.value}=2" \
            if needed.key == "mesh" else f"add {words_of(needed, chosen)}"
        raise UsageError(f"{field.flag} {needed.why}: {mend}, or leave it out")


def words_of(beside: Beside, chosen: TrainConfig | CommandOptions) -> str:
    """The flag of the other option and the value that `beside` names, if any: "--data digits"."""
    return f"{chosen.options[beside.key].flag} {beside.value}".rstrip()


def is_given(needed: Beside, chosen: TrainConfig | CommandOptions) -> bool:
    """True if the needed option is given, or its axis of the mesh has several ranks."""
    if needed.key == "mesh" and isinstance(chosen, TrainConfig):
        return mesh_sizes(chosen).get(needed.value, 1) > 1
    return chosen.gives(needed.key) and bool(chosen.get(needed.key))


def check_machine(config: TrainConfig) -> None:
    """Check the GPU, and the folders that the run writes to.  Raises UsageError."""
    check_gpu(config)
    check_offload_folder(config)
    for option, folder in (("--out", config.run.out), ("run.record", config.run.record)):
        if folder is not None:
            check_folder(folder, option)


def check_folder(folder: Path, option: str = "--out") -> None:
    """Make the folder that `option` names, and try to write there.  Raises UsageError."""
    try_to_write(folder, option, f"{option} DIR")
