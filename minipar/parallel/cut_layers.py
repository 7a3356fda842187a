"""Change a model for a mesh: layers are cut over tp, experts over ep, tokens over cp."""

from typing import TYPE_CHECKING

from ..comm import Communicator
from ..comm.mesh import ORDER, DeviceMesh
from ..nn import GPT, Module
from ..nn.module import ChainPart
from .conjugate import gather_from, scatter_to
from .pipeline.stages import OneStage

if TYPE_CHECKING:
    from ..number_formats import Format
    from .context.rank_groups import ContextOptions


def cut_layers(model: Module, mesh: DeviceMesh, sequence_parallel: bool = False,
               context: "ContextOptions | None" = None,
               message_format: "Format | None" = None) -> None:
    """Change the layers of `model` for the axes of `mesh`; messages are sent as `message_format`.

    An axis loads its own files: plain data parallelism needs none of them.  Raises ValueError for a
    model that is cut already.
    """
    for name, parameter in model.named_parameters():
        if parameter.shape != parameter.global_shape:
            raise ValueError(f"{name} is cut over ranks already, {parameter.shape} "
                             f"of {parameter.global_shape}: give the plain model and a mesh with "
                             "tp, DeviceMesh(comm, dp=2, tp=2)")
    if mesh.shape.get("tp", 1) > 1:
        from .tensor.parallelize import parallelize
        parallelize(model, mesh["tp"], sequence_parallel, message_format=message_format)
    if "ep" in mesh:
        from .expert.distribute_experts import distribute_experts
        distribute_experts(model, mesh["ep"])
    if mesh.shape.get("cp", 1) > 1:
        from .context.parallelize_context import parallelize_context
        from .context.rank_groups import ContextSplit
        parallelize_context(model, ContextSplit(mesh["cp"], context, message_format))


def send_pieces(stages: OneStage, tp: Communicator) -> None:
    """Let each tp rank send 1/t of the activation; the tp ranks of the next stage gather it.

    Backward does the same with gradients.  Narayanan et al. 2021, section 4.1 ("scatter/gather").
    """
    for stage, parts in enumerate(stages.parts):
        if stage:
            parts.insert(0, ChainPart("gather", lambda x: gather_from(x, tp, -1), [], False))
        if stage + 1 < len(stages):
            parts.append(ChainPart("scatter", lambda y: scatter_to(y, tp, -1), [], False))


def check_axes(model: Module, mesh: DeviceMesh, sequence_parallel: bool,
               scatter_gather: bool, context: "ContextOptions | None") -> None:
    """Raise ValueError for axes that do not exist, and for options that do not go with the axes."""
    others = [axis for axis in mesh.axes if axis not in ORDER]
    if others:
        raise ValueError(f"a strategy's mesh has the axes {', '.join(ORDER[:-1])} and {ORDER[-1]}, "
                         f"not {', '.join(others)}")
    if sequence_parallel and mesh.shape.get("tp", 1) == 1:
        raise ValueError("sequence_parallel splits tokens over the ranks of tp, and here tp "
                         "has only one: leave it off, or give the mesh tp=2")
    if context is not None and mesh.shape.get("cp", 1) == 1:
        raise ValueError("context says how the ranks of cp share tokens, and here cp has only one: "
                         "leave it out, or give the mesh cp=2")
    if not scatter_gather:
        return
    cut = [mesh.shape.get(axis, 1) > 1 for axis in ("pp", "tp")]
    if not all(cut) or not isinstance(model, GPT) or sequence_parallel:
        raise ValueError("scatter_gather is for a GPT over pp and tp without sequence_parallel: "
                         "elsewhere ranks have nothing in common to send in pieces; leave it off")
