"""DDP and FSDP against PyTorch's DDP (gloo) and FSDP2, on the same two processes.

The same GPT, the same samples, AdamW; steps are interleaved, so that both have the machine alike.
PyTorch has its own connections between the processes, which MPI started.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

from minipar.backend.malloc import keep_freed_memory
from minipar.comm import Communicator
from minipar.comm.collectives import all_reduce, broadcast
from minipar.nn import GPT
from minipar.parallel.strategy import Microbatch

from ..gpt import BATCH, CONFIG, make_batch
from ..timing import (
    Row,
    check_same,
    import_torch,
    milliseconds,
    seconds_of_slowest,
    training_step,
)
from .data_parallel import make_step

PAIRS = {"ddp": ("PyTorch DDP, gloo", 1.15), "fsdp": ("PyTorch FSDP2, gloo", 1.30)}


def measure(comm: Communicator, num_rounds: int) -> list[Row]:
    """A row for each pair, on rank 0, if PyTorch is installed; `comm` has two ranks."""
    torch = import_torch()
    if torch is None:
        return [Row("DDP and FSDP against PyTorch's", "needs PyTorch: pip install '.[pytorch]'")] \
            if comm.rank == 0 else []
    keep_freed_memory()
    ids, targets = make_batch(2 * BATCH, CONFIG)
    rows = np.arange(comm.rank * BATCH, (comm.rank + 1) * BATCH)
    mine = Microbatch(ids[rows], targets[rows], rows)
    with tempfile.TemporaryDirectory() as directory:
        connect(torch, comm, Path(directory))
        steps = {}
        for name, (theirs, _) in PAIRS.items():
            steps[name] = make_step(comm, name, mine)
            steps[theirs] = _torch_step(torch, name, mine)
        check_same("a step on two ranks", {
            name: lambda step=step: _mean(comm, step()) for name, step in steps.items()})
        seconds = seconds_of_slowest(comm, steps, num_rounds)
        torch.distributed.destroy_process_group()
    if comm.rank:
        return []
    tokens = 2 * BATCH * CONFIG.context
    return [Row(f"GPT, {name} on 2 ranks, {BATCH} samples each",
                f"{milliseconds(seconds[name])}, {tokens / seconds[name]:,.0f} tokens/s",
                f"{theirs} {milliseconds(seconds[theirs])}", seconds[theirs] / seconds[name],
                target) for name, (theirs, target) in PAIRS.items()]


def connect(torch: ModuleType, comm: Communicator, directory: Path) -> None:
    """PyTorch's process group, found through a file in rank 0's directory."""
    path = np.zeros(512, np.uint8)
    text = str(directory / "store").encode()
    path[:len(text)] = list(text)
    path = bytes(broadcast(comm, path)).rstrip(b"\0").decode()
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=comm.rank,
                                         world_size=comm.size)


def _torch_step(torch: ModuleType, name: str, batch: Microbatch) -> Callable[[], float]:
    from ..baselines.torch_models import TorchGPT, copy_state
    model = copy_state(GPT(CONFIG).initialize(seed=0).state_dict(), TorchGPT(CONFIG))
    if name == "ddp":
        trained = torch.nn.parallel.DistributedDataParallel(model)
    else:
        for block in model.h:
            torch.distributed.fsdp.fully_shard(block)
        trained = torch.distributed.fsdp.fully_shard(model)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3, fused=True)
    ids, targets = torch.tensor(batch.inputs), torch.tensor(batch.targets)
    return training_step(optimizer, lambda: torch.nn.functional.cross_entropy(
        trained(ids).flatten(0, 1), targets.flatten()))


def _mean(comm: Communicator, loss: float) -> float:
    """Over the ranks: PyTorch's losses are those of one rank, minipar's are the same on all."""
    return float(all_reduce(comm, np.array([loss], np.float64))[0]) / comm.size
