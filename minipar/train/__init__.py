"""Training: from a configuration to a checkpoint, with any strategy on any number of ranks.

    from minipar.train import ModelConfig, RunConfig, TrainConfig, train

    result = train(TrainConfig(model=ModelConfig(layers=2), run=RunConfig(steps=100, ranks=4)))
    print(result.losses[-1])

    config.py, option.py    every option of `minipar train`, in frozen dataclasses
    flags.py, config_file.py    the same from the command line, and from TOML
    check.py                every mistake that can be found before the ranks start
    program.py              train(config): the whole program
    loop.py                 the loop itself, and one step
    setup/                  what the configuration means: strategy, precision, memory, device …
    tasks.py, digits_task.py    a GPT on a text, an MLP on digits; task.py: what both bring
    report.py               the headline, the progress bar, the pictures
    checkpoints/            saving, resuming; checkpoints of models
    recipes/                the runs of `minipar prune`, `distill` and `milestone`

Read config.py and loop.py first.
"""

from .checkpoints.models import save_model
from .config import (
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
from .loop import TrainState, start_run, train_steps
from .program import TrainResult, train
from .setup.context import ContextConfig

__all__ = ["ContextConfig", "DataConfig", "ExpertsConfig", "MemoryConfig", "ModelConfig",
           "OptimizerConfig", "ParallelConfig", "PrecisionConfig", "RunConfig", "TrainConfig",
           "TrainResult", "TrainState", "save_model", "start_run", "train", "train_steps"]
