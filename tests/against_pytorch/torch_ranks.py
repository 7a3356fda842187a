"""A program of two or more processes: PyTorch trains a GPT, and every collective is written down.

    python torch_ranks.py RANK SIZE STORE JOB       JOB: JSON, see `main`

Rank 0 prints JSON: losses by step, collectives by step, parameters at the end.
"""

import json
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from minipar.nn import GPT, GPTConfig
from tests.bench.baselines.torch_models import TorchGPT, copy_state, read_state

NAMES = {"allreduce_": "all_reduce", "_allgather_base_": "all_gather",
         "_reduce_scatter_base_": "reduce_scatter", "broadcast_": "broadcast"}


class Recorder(TorchDispatchMode):
    """Notes [operation, elements of its largest tensor] for each collective."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Called for every operation of PyTorch, c10d's included."""
        if function.namespace == "c10d":
            sizes = [x.numel() for x in tree_flatten(args)[0] if isinstance(x, torch.Tensor)]
            name = function.__name__.partition(".")[0]
            self.seen.append([NAMES.get(name, name), max(sizes, default=0)])
        return function(*args, **(kwargs or {}))


def main(rank: int, size: int, store: str, job: dict) -> None:
    """`job`: strategy "ddp" or "fsdp", config, ids (steps, samples, time + 1), lr, bucket_mb."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    config = GPTConfig(**job["config"])
    state = GPT(config).initialize(seed=0, dtype=np.float64).state_dict()
    model = copy_state(state, TorchGPT(config))
    if job["strategy"] == "ddp":
        trained = DistributedDataParallel(model, bucket_cap_mb=job["bucket_mb"])
    else:
        for block in model.h:
            fully_shard(block)
        trained = fully_shard(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=job["lr"], momentum=0.9)
    losses, collectives = [], []
    for ids in job["ids"]:
        mine = torch.tensor(np.array_split(ids, size)[rank])
        with Recorder() as recorder:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(trained(mine[:, :-1]).flatten(0, 1),
                                                     mine[:, 1:].flatten())
            loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / size)      # all have as many targets
        collectives.append(recorder.seen)
    if job["strategy"] == "fsdp":
        for name, parameter in list(model.named_parameters()):
            module = model.get_submodule(name.rpartition(".")[0])
            whole = torch.nn.Parameter(parameter.full_tensor())
            module.register_parameter(name.rpartition(".")[2], whole)
    if rank == 0:
        state = {name: values.tolist() for name, values in read_state(model).items()}
        print(json.dumps({"losses": losses, "collectives": collectives, "state": state}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
