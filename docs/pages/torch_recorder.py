"""Record a run of PyTorch for `minipar compare left.trace right.trace`.

Copy this file and minipar/compare_runs/recorder.py, which needs NumPy alone, beside your program.

    recorder = TorchRecorder(model, rank, places)
    for step, (x, y) in enumerate(batches):
        recorder.start(step)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        recorder.gradients(loss)
        optimizer.step()
        recorder.updated()
    recorder.write("right.trace")                   # a folder, with a file of each rank

It records the output of each module and its gradient, and the values and the gradient of each
parameter.  The model itself and containers (Sequential, ModuleList, ModuleDict) are left out, and
so are outputs that are no tensor.  A DTensor says itself which part of a global array it is.  For a
plain tensor `places` says so: places["fc1.weight"] = (shape, box), with the box as in recorder.py.
The name is that of a parameter, or of a module for its output.  What has no place is whole on each
rank.  The second output of a module in a step is recorded as "fc1 (2)".
"""

from collections import Counter
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from recorder import Recorder
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


class TorchRecorder:
    """Records a model on one rank; `places` as above."""

    def __init__(self, model: nn.Module, rank: int = 0, places: dict | None = None):
        self.model, self.recorder = model, Recorder(rank)
        self.places, self.step, self.calls = places or {}, 0, Counter()
        if dist.is_initialized():
            self.recorder.record("ranks", dist.get_world_size(), "layout")
        for name, module in model.named_modules():
            if name and not isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
                module.register_forward_hook(partial(self._output, name))
        for name, parameter in model.named_parameters():
            self.keep(name, "initial", parameter)

    def start(self, step: int) -> None:
        """Begin a step: outputs are counted from 1 again."""
        self.step, self.calls = step, Counter()

    def gradients(self, loss: torch.Tensor) -> None:
        """Record the loss and all gradients: after backward, and after all reductions."""
        self.keep("loss", "loss", loss)
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.keep(name, "gradient", parameter.grad)

    def updated(self) -> None:
        """Record the parameters: after the optimizer's step."""
        for name, parameter in self.model.named_parameters():
            self.keep(name, "parameter", parameter)

    def write(self, folder: str) -> Path:
        """Write the file of this rank; return its path."""
        return self.recorder.write(Path(folder) / f"rank-{self.recorder.rank}.npz")

    def keep(self, name: str, phase: str, tensor: torch.Tensor) -> None:
        """Record a tensor, at its place in the global array."""
        shape, box = self.places.get(name.partition(" (")[0], (None, None))
        term, here = "", tensor.detach()
        if isinstance(here, DTensor):
            lengths, offsets = compute_local_shape_and_global_offset(
                here.shape, here.device_mesh, here.placements)
            shape, box = here.shape, [[(a, a + n)] for a, n in zip(offsets, lengths)]
            term = " ".join(f"{axis} {at}" for axis, (at, placement) in enumerate(zip(
                here.device_mesh.get_coordinate(), here.placements)) if placement.is_partial())
            here = here.to_local()
        values = here.float() if here.dtype in (torch.bfloat16, torch.float16) else here
        self.recorder.record(name, values.cpu().numpy(), phase, self.step, shape, box, term)

    def _output(self, name: str, module: nn.Module, inputs: tuple, output: object) -> None:
        if isinstance(output, torch.Tensor):
            self.calls[name] += 1
            name += f" ({self.calls[name]})" if self.calls[name] > 1 else ""
            self.keep(name, "forward", output)
            if output.requires_grad:
                output.register_hook(partial(self.keep, name, "backward"))
