"""Training: from a configuration to a checkpoint, with any strategy on any number of ranks.

    from minipar.train import ModelConfig, RunConfig, TrainConfig, train

    result = train(TrainConfig(model=ModelConfig(layers=2), run=RunConfig(steps=100, ranks=4)))
    print(result.losses[-1])

    config.py, option.py    the options of `minipar train`, in frozen dataclasses
    slow_network_options.py … those of local SGD, DiLoCo, PowerSGD and others
    command_line.py         reads options from the command line, also those of other commands
    config_file.py          … and from TOML
    check.py                refuses a configuration that cannot work, before the ranks start
    program.py              train(config): the whole program
    start.py                makes the objects that the loop uses, from a configuration
    loop.py                 the loop itself, and one step
    setup/                  what the configuration means: strategy, precision, memory, device …
    tasks.py                a GPT on a text, an MLP on digits
    report.py               the headline, the progress bar, the pictures
    checkpoints/            saving, resuming; checkpoints of models
    recipes/                the runs of `minipar prune`, `distill`, `milestone`, `compare`, --verify

Read config.py and loop.py first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:       # what a type checker and an editor see; `__getattr__` imports the same
    from .checkpoints.models import save_model
    from .config import (
        ContextConfig,
        DataConfig,
        ExpertsConfig,
        MemoryConfig,
        ModelConfig,
        OptimizerConfig,
        ParallelConfig,
        PrecisionConfig,
        RunConfig,
        TrainConfig,
    )
    from .loop import TrainState, train_steps
    from .program import TrainResult, train
    from .start import start_run

__all__ = ["ContextConfig", "DataConfig", "ExpertsConfig", "MemoryConfig", "ModelConfig",
           "OptimizerConfig", "ParallelConfig", "PrecisionConfig", "RunConfig", "TrainConfig",
           "TrainResult", "TrainState", "save_model", "start_run", "train", "train_steps"]
_MODULES = {"checkpoints.models": ("save_model",), "loop": ("TrainState", "train_steps"),
            "program": ("TrainResult", "train"), "start": ("start_run",)}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use, so that `config` alone loads nothing else of a run."""
    module = next((module for module, names in _MODULES.items() if name in names), "config")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{module}", __name__), name)
