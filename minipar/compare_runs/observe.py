"""Record the run of a strategy on one rank, in global coordinates.

    forward     the output of each module and part         ┐ rows of the microbatch, this rank's
    backward    the gradient at the same places            ┘ tokens, its columns of a cut layer
    local gradient      of each parameter before its reduction: one term for each microbatch
    gradient            after the reduction, as the optimizer gets it
    norm, state, parameter      after the step

The strategy needs no code for this.  `Module.around` watches modules, ready hooks watch gradients,
and the segments of the slabs show what the optimizer has.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from ..autograd import Function, GradientSlot, Tensor
from ..backend import Array, to_host
from ..backend.views import view_spec
from ..comm import Communicator
from ..comm.collectives import chunk_bounds, gather_object
from ..data.batches import Batch
from ..memory.remat.recompute import is_recomputing
from ..nn import Module, MoE, Parameter
from ..nn.module import Part
from ..nn.parameter import slice_box
from ..nn.step_context import current_step
from ..parallel.context.rank_groups import ContextSplit
from ..parallel.data.classic_data_parallel import DataParallel
from ..parallel.strategy import Strategy
from .recorder import RecordedArray, Recorder, Runs, index_runs


class Watch(Function):
    """The identity; its backward passes the gradient to `see`."""

    metered = False

    @staticmethod
    def forward(ctx, array, see):
        """The array itself."""
        ctx.see = see
        return array

    @staticmethod
    def backward(ctx, g):
        """The gradient itself, after `see(g)`."""
        ctx.see(g)
        return [g]


class Columns(NamedTuple):
    """The columns of a cut layer's output: `runs` of `total`; `width` of them are here."""

    width: int
    total: int
    runs: Runs


class StepObserver:
    """Records what `strategy` computes on this rank: a Strategy, or an object with its methods.

        observer = StepObserver(strategy, recorder)
        observer.start(step, batch, rows)               before forward_backward
        observer.gradients(loss)                        after it
        observer.updated(norm, optimizer)               after the step

    `batch` is the global batch; `rows` are the rows of this rank's microbatches.
    """

    def __init__(self, strategy: Any, recorder: Recorder):
        self.strategy, self.model, self.recorder = strategy, strategy.model, recorder
        self.step, self.batch = -1, Batch(*[np.empty(0)] * 3)
        self.row_of: dict[int, int] = {}            # the row of each sample in the batch
        self.rows: np.ndarray = np.empty(0, int)    # of the microbatch in work
        self.columns: Columns | None = None         # of the last cut layer's output
        self.microbatches: Sequence[np.ndarray] = []
        self.scale = 1.0
        self.calls: dict[tuple, int] = {}
        splits = (vars(module).get("context_split") for _, module in self.model.named_modules())
        self.context: ContextSplit | None = next(filter(None, splits), None)
        self.doors = [module.around(partial(self.call, name, module))
                      for name, module in watched(self.model)]
        # parts whose output columns are the rows of a weight: a tied head, and attention's heads
        self.rows_as_columns = {
            id(vars(module)[part]): weight for _, module in self.model.named_modules()
            for part, layer in (("head", "wte"), ("core", "c_proj"))
            if part in vars(module) and layer in module._modules
            and (weight := module._modules[layer]._parameters.get("weight")) is not None}
        self.names = {parameter.slot: name for name, parameter in self.model.named_parameters()}
        self.parameter_of = {p.slot: p for p in self.model.parameters()}
        self.terms: dict[tuple[str, str], np.ndarray] = {}  # recorded so far
        self.before: dict[GradientSlot, np.ndarray] = {}    # gradients of earlier microbatches
        for slot in self.names:
            slot.ready_hooks.insert(0, self.on_gradient)
        self.record_parameters("initial", 0)

    def close(self) -> None:
        """Remove all hooks."""
        for door in self.doors:
            door.remove()
        for slot in self.names:
            slot.ready_hooks.remove(self.on_gradient)

    # Activations.

    def start(self, step: int, batch: Batch, rows: Sequence[np.ndarray],
              scale: float = 1.0) -> None:
        """Call it before the forward of a step, whose loss is multiplied by `scale`."""
        self.step, self.batch, self.microbatches, self.scale = step, batch, rows, scale
        self.rows = rows[0]
        mesh = getattr(self.strategy, "mesh", None)
        if mesh is not None:
            self.record("ranks", "layout", np.array(mesh.comm.size))
            for axis in (*mesh.axes, *["ep"] * ("ep" in mesh)):
                self.record(f"axis {axis}", "layout", np.array(mesh.coordinate(axis)))
        self.record("batch", "layout", batch.samples)
        for i, each in enumerate(rows):
            self.record(f"microbatch {i}", "layout", each)
        self.row_of = {int(sample): row for row, sample in enumerate(batch.samples)}
        self.calls, self.before, self.terms = {}, {}, {}

    def call(self, name: str, module: Module, forward: Callable, *inputs: Any,
             **options: Any) -> Any:
        """Around a module's call: record its output, and later the output's gradient."""
        y = forward(*inputs, **options)
        known = current_step()
        if self.step < 0 or not isinstance(y, Tensor) or y.dtype.kind != "f":
            return y
        if known is not None:
            self.rows = np.array([self.row_of.get(int(sample), -1) for sample in known.samples],
                                 int)
        elif (count := self.calls.get((name,), 0)) < len(self.microbatches):
            self.rows, self.calls[name,] = self.microbatches[count], count + 1
        place = self.place_of(module, y.shape)
        if place is None:
            return y
        shape, box = place
        if not is_recomputing():
            call = name, tuple(self.rows)
            self.calls[call] = self.calls.get(call, 0) + 1
            if self.calls[call] == 1:           # else a second use, or the step after a trial
                self.record(name, "forward", y.data, shape, box)
        return Watch.apply(y, see=partial(self.see, name, self.rows, shape, box)) \
            if y.requires_grad else y

    def see(self, name: str, rows: np.ndarray, shape: tuple, box: list, grad: Array) -> None:
        """In backward: record the gradient of an output, whose microbatch is now in work."""
        self.rows = rows
        if self.calls.pop((name, tuple(rows)), 0):      # of several uses the last one
            self.record(name, "backward", grad / self.scale, shape, box)

    def place_of(self, module: Module, local: tuple[int, ...]) -> tuple[tuple, list] | None:
        """The global shape and the box of an output of shape `local`; None where rows are mixed."""
        if len(local) < 2 or local[0] != len(self.rows) or min(self.rows, default=0) < 0:
            return None
        shape = [len(self.batch.samples), *local[1:]]
        box: list[Runs | None] = [index_runs(self.rows), *[None] * (len(local) - 1)]   # None: whole
        if len(local) == 3 and self.batch.inputs.ndim == 2:
            shape[1] = self.batch.inputs.shape[1]
            box[1] = self.tokens(local[1], shape[1])
            if box[1] is None:
                return None
        columns = self.columns_of(module, local[-1])
        if columns is not None:
            shape[-1], box[-1] = columns.total, columns.runs
        return tuple(shape), box

    def tokens(self, here: int, total: int) -> Runs | None:
        """This rank's tokens of an output that has `here` of `total`; None if not known."""
        if here == total:
            return ((0, total),)
        mine = np.arange(total) if self.context is None else self.context.layout_of(total).mine
        if here < len(mine) and isinstance(self.strategy, Strategy):        # sequence parallelism
            tp = self.strategy.tp
            mine = mine[slice(*chunk_bounds(len(mine), tp.size)[tp.rank])]
        return index_runs(mine) if here == len(mine) else None

    def columns_of(self, module: Module, width: int) -> Columns | None:
        """The columns of a cut layer's output that are on this rank; None: all."""
        weight = module._parameters.get("weight")
        rows = self.rows_as_columns.get(id(module))
        if rows is not None:
            (start, stop), total = rows.box[0], rows.global_shape[0]
            if width == stop - start < total:
                return Columns(width, total, ((start, stop),))
        if weight is not None and not isinstance(module, Part):
            (start, stop), total = weight.box[-1], weight.global_shape[-1]
            order = np.arange(total) if weight.order is None else np.array(weight.order)
            self.columns = Columns(width, total, index_runs(order[start:stop])) \
                if width == stop - start < total else None
        elif module._modules or module._parameters or self.columns and self.columns.width != width:
            self.columns = None                     # an activation has the columns of its layer
        return self.columns

    # Parameters.

    def on_gradient(self, slot: GradientSlot) -> None:
        """Hook: record a parameter's gradient, complete after a backward but not yet reduced."""
        grad, parameter = slot.grad, self.parameter_of[slot]
        if self.step < 0 or grad is None:
            return
        adds_up = not getattr(self.strategy, "reduces_each_backward", False)
        here, before = to_host(grad) / self.scale, self.before.get(slot)
        if adds_up:
            self.before[slot] = here
        added = here - before if adds_up and before is not None else here
        term = self.names[slot], self.term_of(parameter)
        if term in self.terms:          # a term of two stages, or of a backward in halves
            self.terms[term] += added
        else:
            self.terms[term] = self.record(term[0], "local gradient", added,
                                           parameter.global_shape,
                                           box_of(parameter.box, parameter.order), term[1])

    def term_of(self, parameter: Parameter) -> str:
        """The name of the term that this rank adds to a gradient: its rows, cp rank, stage."""
        rows = " ".join(f"{a}-{b - 1}" for a, b in index_runs(self.rows))
        strategy, words = self.strategy, [f"rows {rows}" if rows else "no rows"]
        if not isinstance(strategy, Strategy):
            return words[0]
        if not rows:
            words.append(f"dp {strategy.dp.rank}")
        if strategy.cp.size > 1:
            words.append(f"cp {strategy.cp.rank}")
        if any(parameter in slab.parameters for _, slab in strategy.stages.shared):
            words.append(f"stage {strategy.pp.rank}")
        return ", ".join(words)

    def gradients(self, loss: float) -> None:
        """Record the loss, and the gradients as the optimizer gets them, after forward_backward."""
        self.record("loss", "loss", np.array(loss))
        if isinstance(self.strategy, DataParallel) and self.strategy.comm.rank:
            return                              # rank 0 alone has gradients and an optimizer
        for slab in slabs_of(self.strategy):
            self.record_segments(slab, slab.complete_grad(), "gradient")

    def updated(self, norm: float | None, optimizer: Any) -> None:
        """Record the norm, the optimizer's states and the parameters, after the step."""
        if norm is not None:
            self.record("norm", "norm", np.array(norm))
        if not (isinstance(self.strategy, DataParallel) and self.strategy.comm.rank):
            for slab, states in zip(optimizer.slabs, optimizer.states):
                for name, values in states.items():
                    self.record_segments(slab, values, "state", f"{name} of ")
        self.record_parameters("parameter", self.step)
        self.step = -1                          # an evaluation is not recorded

    def record_parameters(self, phase: str, step: int) -> None:
        """Record the parameters that the optimizer has, and those that the model computes with."""
        if isinstance(self.strategy, DataParallel) and self.strategy.comm.rank:
            return                              # they come with the next forward
        self.step = step
        for slab in slabs_of(self.strategy):
            self.record_segments(slab, slab.data, phase)
        owned = [slab.data for slab in slabs_of(self.strategy)]
        for name, parameter in self.model.named_parameters():
            if parameter.initialized and not any(is_inside(parameter.data, each)
                                                 for each in owned):
                self.record(name, phase, parameter.data, parameter.global_shape,
                            box_of(parameter.box, parameter.order))
        self.step = -1

    def record_segments(self, slab: Any, values: Array, phase: str, before: str = "") -> None:
        """Record each segment's part of `values`, an array laid out as the slab is."""
        for segment in slab.segments:
            self.record(before + segment.name, phase, values[segment.start:segment.stop],
                        segment.global_shape, box_of(segment.box, segment.order) if
                        segment.flat_range is None else flat_box_of(
                            segment.global_shape, segment.box, segment.order, segment.flat_range))

    def record(self, name: str, phase: str, values: Array, shape: Sequence[int] | None = None,
               box: Sequence[Any] | None = None, term: str = "") -> np.ndarray:
        """Keep a host copy, and return it."""
        return self.recorder.record(name, to_host(values), phase, self.step, shape, box, term)


@cache
def box_of(box: tuple[tuple[int, int], ...], order: tuple[int, ...] | None) -> list[Runs]:
    """A parameter's box as runs of each axis; first, `order` reorders the last axis."""
    runs: list[Runs] = [(bounds,) for bounds in box]
    if order is not None:
        runs[-1] = index_runs(order[slice(*box[-1])])
    return runs


@cache
def flat_box_of(shape: tuple[int, ...], box: tuple[tuple[int, int], ...],
                order: tuple[int, ...] | None, part: tuple[int, int]) -> list[Runs]:
    """Elements part[0] to part[1] of a parameter's box, as indices of the flat parameter."""
    whole = np.arange(np.prod(shape)).reshape(shape)
    return [index_runs(slice_box(whole, box, order).ravel()[slice(*part)])]


def watched(model: Module) -> Iterator[tuple[str, Module]]:
    """The modules and parts whose outputs have the batch's rows: not those inside experts."""
    inside = {id(module) for _, moe in model.named_modules() if isinstance(moe, MoE)
              for _, module in moe.named_modules() if module is not moe}
    for name, module in model.named_modules():
        if id(module) not in inside and getattr(module, "rate", True):  # not dropout at rate 0
            if name:
                yield name, module
            yield from ((f"{name}.{part_name}".lstrip("."), part)
                        for part_name, part in vars(module).items()
                        if isinstance(part, Part) and part_name != "cross_entropy")


def is_inside(array: Array, base: Array) -> bool:
    """True if all of `array` is a view of `base`."""
    place = view_spec(array, base)
    return place is not None and 0 <= place.offset <= base.nbytes - array.nbytes


def slabs_of(strategy: Any) -> Sequence[Any]:
    """The slabs that a strategy optimizes; the model's, for an object without slabs."""
    return getattr(strategy, "slabs", strategy.model.slabs)


def gather_records(comm: Communicator, own: Sequence[RecordedArray]) -> list[RecordedArray] | None:
    """Collective.  All ranks' records, on rank 0; None elsewhere."""
    with comm.labelled("control"):
        lists = gather_object(comm, [(*each[:-1], each.values.dtype.str, each.values.shape)
                                     for each in own])
        if lists is None:
            for each in own:
                if each.values.size:
                    comm.send(each.values, 0)
            return None
        found = list(own)
        for rank in range(1, comm.size):
            for name, phase, step, _, shape, box, term, dtype, size in lists[rank]:
                values = np.empty(size, dtype)
                if values.size:
                    comm.recv(values, rank)
                found.append(RecordedArray(name, phase, step, rank, tuple(shape), tuple(
                    tuple((a, b) for a, b in runs) for runs in box), term, values))
    return found
