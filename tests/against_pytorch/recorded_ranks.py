"""A program of PyTorch, recorded: an MLP in one process, or cut over two ranks by hand.

    python recorded_ranks.py RANK SIZE STORE FOLDER KIND

KIND is "right", "no f" (the input's gradient is not summed), "bias twice", or "dtensor" (the same
layers, cut by PyTorch's parallelize_module).
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "docs/pages"), str(ROOT / "minipar/compare_runs")]
from torch_recorder import TorchRecorder  # noqa: E402

WIDTH, HIDDEN = 6, 8


class CopyTo(torch.autograd.Function):
    """Megatron's f: nothing in forward, a sum in backward."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class ReduceFrom(torch.autograd.Function):
    """Megatron's g: a sum in forward, nothing in backward."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Net(nn.Module):
    """embed, then a pair of layers, then a sum of squares."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(self.norm(self.embed(x)))))


class CutNet(Net):
    """This rank's columns of fc1, and rows of fc2."""

    def cut(self, rank: int, size: int, kind: str) -> dict:
        """Keep this rank's part; where it belongs."""
        mine = HIDDEN // size * rank, HIDDEN // size * (rank + 1)
        part, self.kind = slice(*mine), kind
        self.fc1.weight.data, self.fc1.bias.data = (
            self.fc1.weight.data[part].clone(), self.fc1.bias.data[part].clone())
        self.fc2.weight.data = self.fc2.weight.data[:, part].clone()
        return {"fc1.weight": ((HIDDEN, WIDTH), [[mine], None]), "fc1.bias": ((HIDDEN,), [[mine]]),
                "fc2.weight": ((WIDTH, HIDDEN), [None, [mine]]),
                "fc1": ((5, HIDDEN), [None, [mine]])}

    def forward(self, x):
        x = self.norm(self.embed(x))
        x = x if self.kind == "no f" else CopyTo.apply(x)
        y = torch.tanh(self.fc1(x)) @ self.fc2.weight.T
        times = 2 if self.kind == "bias twice" else 1
        return ReduceFrom.apply(y) + times * self.fc2.bias


def main(rank: int, size: int, store: str, folder: str, kind: str) -> None:
    """Train two steps, and record them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = Net() if size == 1 or kind == "dtensor" else CutNet()
    places = {}
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        if kind == "dtensor":
            parallelize_module(model, init_device_mesh("cpu", (size,)),
                               {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()})
            places = {"fc1": ((5, HIDDEN), [None, [(HIDDEN // size * rank,
                                                    HIDDEN // size * (rank + 1))]])}
        else:
            places = model.cut(rank, size, kind)
    recorder = TorchRecorder(model, rank, places)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        recorder.start(step)
        optimizer.zero_grad()
        loss = model(torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(step))
                     ).square().mean()
        loss.backward()
        recorder.gradients(loss)
        optimizer.step()
        recorder.updated()
    recorder.write(folder)
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
