"""minipar: distributed training from scratch, in NumPy/CuPy and MPI.

    import minipar as mp

    mp.launch(main)                                     main(comm) on every rank there is
    mp.DeviceMesh(comm, dp=2, tp=2)                     the ranks as a grid
    mp.make_strategy("zero1", model, mesh)              how the ranks share the work

A name is imported when it is first used, so `import minipar` is fast and loads neither MPI nor
matplotlib.  To read the source, start at docs/spine.txt.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:       # what a type checker and an editor see; `_MODULES` says the same
    from . import data as data
    from . import testing as testing
    from .autograd import Tensor, backward, no_grad
    from .comm import Cluster, Communicator
    from .comm.collectives import (
        all_gather,
        all_reduce,
        all_to_all,
        barrier,
        broadcast,
        exscan,
        gather,
        reduce,
        reduce_scatter,
        scan,
        scatter,
    )
    from .comm.mesh import DeviceMesh
    from .inference import Engine, ModelRunner, SamplingParams, SchedulerConfig
    from .interop import load_pretrained, save_pretrained
    from .launcher import launch, simulate
    from .nn import GPT, MLP, GPTConfig, Module, RopeConfig
    from .optim import SGD, Adam, AdamW, warmup_cosine
    from .parallel.registry import make_strategy

__version__ = "0.3.0"

__all__ = [
    "GPT", "MLP", "SGD", "Adam", "AdamW", "Cluster", "Communicator", "DeviceMesh", "Engine",
    "GPTConfig", "ModelRunner", "Module", "RopeConfig", "SamplingParams", "SchedulerConfig",
    "Tensor", "all_gather", "all_reduce", "all_to_all", "backward", "barrier", "broadcast", "data",
    "exscan", "gather", "launch", "load_pretrained", "make_strategy", "no_grad", "reduce",
    "reduce_scatter", "save_pretrained", "scan", "scatter", "simulate", "testing",
    "warmup_cosine"]
_MODULES = {
    "autograd": ("Tensor", "backward", "no_grad"),
    "comm": ("Cluster", "Communicator"),
    "comm.collectives": ("all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "exscan",
                         "gather", "reduce", "reduce_scatter", "scan", "scatter"),
    "comm.mesh": ("DeviceMesh",),
    "inference": ("Engine", "ModelRunner", "SamplingParams", "SchedulerConfig"),
    "interop": ("load_pretrained", "save_pretrained"),
    "launcher": ("launch", "simulate"),
    "nn": ("GPT", "MLP", "GPTConfig", "Module", "RopeConfig"),
    "optim": ("SGD", "Adam", "AdamW", "warmup_cosine"),
    "parallel.registry": ("make_strategy",),
}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use (PEP 562)."""
    if name in ("data", "testing"):
        return import_module(f".{name}", __name__)
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module 'minipar' has no attribute {name!r}: it offers "
                         f"{', '.join(__all__)}")


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext minipar`: a notebook then knows `%%ranks`."""
    import_module(".school.notebook", __name__).load(ipython)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
