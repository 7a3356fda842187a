"""Mixed precision: numbers are kept in 2 bytes or 1, summed gradients and weights in 4.

    weight (float32) ─ round ─┐                                 one module in bfloat16
    x ────────────── round ───┴─▶ linear in float32 ─ round ─▶ y, a bfloat16 number in float32
                        └ saved for backward as codes of 2 bytes

NumPy has no BLAS for float16 and no bfloat16 at all.  So numbers are *stored* narrow, *computed* in
float32, and *rounded* once per operation.  The results are as on an accelerator whose products add
up in float32; the speed is float32's.  Saved activations and messages
(`parallel/wire_formats/low_precision.py`) are narrow, and are counted as narrow; the one
array that an operation works on is float32.

The weights in the slab, the model's flat array, are the "master weights".  They add up updates far
smaller than a weight, which a narrow weight would round away.  A narrow weight is rounded from its
master for each use, and once more for backward instead of being kept.  Micikevicius et al. 2018
(arXiv 1710.03740).

Per parameter, bytes:      weight   gradient   master   Adam's states    sum
    paper (2 + 2 + 12)        2         2         4           8           16
    here                      -         4         4           8           16
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

from ..autograd import Tensor
from ..autograd.function import operation_hook
from ..autograd.ops.rounding import round_to
from ..autograd.saved import StopForward, current_saved_tensors_hooks, saved_tensors_hooks
from ..backend import Array, record_allocation
from ..nn import Module
from ..nn.module import Part
from ..number_formats import Format
from .policy import Precision


def set_precision(model: Module, precisions: Precision | Mapping[str, Precision]) -> Module:
    """Make the modules of `model` compute in these precisions; return the model.

    Call it before a strategy takes the model.  A mapping goes from patterns of names to precisions:
    {"": FP16, "h.*.mlp": FP8, "ln_f": FP32}.  "" is the model.  A precision holds for everything
    inside a module, except what has its own.  "*" stands for one name; the last pattern that
    matches wins.  The loss of the logits stays in float32.  Raises ValueError for a pattern that
    matches nothing, and for a model that is not in float32.

    If rematerialization was set up before this call, the inputs of segments are kept in the model's
    own precision; otherwise they are kept in float32.
    """
    if isinstance(precisions, Precision):
        precisions = {"": precisions}
    wide = [name for name, p in model.named_parameters() if str(p.dtype) != "float32"]
    if wide:
        raise ValueError(f"{wide[0]} is not float32, which narrow numbers are computed in: "
                         "initialize(seed) the model with dtype=np.float32")
    names = dict(model.named_modules()) | _parts(model)
    unused = [pattern for pattern in precisions
              if not any(_matches(name, pattern) for name in names)]
    if unused:
        raise ValueError(f"no module is called {unused[0]!r}: this model has "
                         f"{', '.join(repr(name) for name in names)}")
    for name, module in names.items():
        precision = _innermost(name, precisions)
        if precision is not None:
            module.around(partial(_run, precision), inside=True)
    for parameter in model.parameters():
        parameter.on_use(_use)
    return model


def _parts(model: Module) -> dict[str, Module]:
    """The parts that have modules of the model: a GPT's "embed" and "head"."""
    return {name: part for name, part in vars(model).items()
            if isinstance(part, Part) and part.names}


def _matches(name: str, pattern: str) -> bool:
    names, patterns = name.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def _innermost(name: str, precisions: Mapping[str, Precision]) -> Precision | None:
    """The precision of the closest module around `name`, itself included, that has one."""
    parts = name.split(".") if name else []
    for length in range(len(parts), -1, -1):
        found = [precision for pattern, precision in precisions.items()
                 if _matches(".".join(parts[:length]), pattern)]
        if found:
            return found[-1]
    return None


# The call of a module that is running; every simulated rank has its own.
_running: ContextVar["_Call | None"] = ContextVar("precision", default=None)
# True while an inner module, which has chosen how to keep an array, hands it to the hooks outside.
# Through a recomputed segment it may reach an outer module there, which must not choose again.
_decided: ContextVar[bool] = ContextVar("decided", default=False)


def _run(precision: Precision, forward: Callable, *inputs: Any, **options: Any) -> Any:
    """Run a module's forward in its precision."""
    with _Call(precision).running() as call:
        return forward(*[call.enter(x) if isinstance(x, Tensor) else x for x in inputs], **options)


def _use(weight: Tensor) -> Tensor:
    """A transform of parameters: the weight in the format that the running module computes in."""
    call = _running.get()
    return weight if call is None else call.use(weight)


class _Kept(NamedTuple):
    """A saved array as the outer hooks packed it, and how to widen it again."""

    item: Any
    widen: Callable[[Array], Array] | None


class _Call:
    """One call of a module: rounds its inputs, weights and results, and packs its saved arrays."""

    def __init__(self, precision: Precision):
        self.precision, hooks, around = precision, current_saved_tensors_hooks(), _running.get()
        # Hooks do not nest here: the innermost precision is the only one that rounds.
        self.outside = around.outside if hooks and around and hooks[0] == around.keep else hooks
        self.weights: dict[int, tuple] = {}     # by id of a rounded one: it, its master, its format

    @contextmanager
    def running(self):
        """Context of the module's forward."""
        narrow = self.precision.outputs is not None
        token = _running.set(self)
        try:
            with ExitStack() as stack:
                stack.enter_context(saved_tensors_hooks(self.keep, self.bring_back, nested=False))
                stack.enter_context(operation_hook(self.leave if narrow else None))
                yield self
        finally:
            _running.reset(token)
            self.weights.clear()

    def enter(self, x: Tensor) -> Tensor:
        """The rounded input of the module."""
        p = self.precision
        return x if p.inputs is None or x.dtype.kind != "f" else round_to(x, p.inputs, p.outputs)

    def use(self, weight: Tensor) -> Tensor:
        """The rounded weight; its gradient is rounded too, before it is added up in float32."""
        p = self.precision
        if p.inputs is None:
            return weight
        fmt = p.inputs if len(weight.shape) > 1 else p.outputs     # matrices; biases and gains
        rounded = round_to(weight, fmt, p.outputs)
        self.weights[id(rounded.data)] = rounded.data, weight.data, fmt
        return rounded

    def leave(self, y: Tensor) -> Tensor:
        """The rounded result of an operation."""
        return round_to(y, self.precision.outputs, self.precision.gradients)

    def keep(self, array: Array) -> Any:
        """Pack hook: keep the master of a weight, and the codes of other numbers.

        Statistics (one number for each row), masks and ids stay as they are.
        """
        widen = None
        fmt = self.precision.inputs if hasattr(array, "dtype") else None    # else it is a hook's
        if fmt is not None and array.dtype.kind == "f" and not _decided.get():
            if found := self._master_of(array):
                array, widen = found[0], partial(_rounded, found[1])
            elif array.ndim and array.shape[-1] != 1:
                array, widen = fmt.encode(record_allocation("temporaries", array)), fmt.decode
        token = _decided.set(True)
        try:
            item = self.outside[0](array) if self.outside else array
        finally:
            _decided.reset(token)
        return item if item is StopForward else _Kept(item, widen)

    def bring_back(self, kept: _Kept) -> Array:
        """Unpack hook: the array that `keep` was given, rounded."""
        array = self.outside[1](kept.item) if self.outside else kept.item
        return record_allocation("temporaries", kept.widen(array)) if kept.widen else array

    def _master_of(self, array: Array) -> tuple[Array, Format] | None:
        """The master of a rounded weight, or of its transpose, and the weight's format."""
        known = [self.weights[i] for i in (id(array), id(array.base)) if i in self.weights]
        for rounded, master, fmt in known:
            if array is rounded:
                return master, fmt
            if (array.shape, array.strides) == (rounded.T.shape, rounded.T.strides):
                return master.T, fmt
        return None


def _rounded(fmt: Format, master: Array) -> Array:
    return fmt.round(master) if master.dtype.kind == "f" else fmt.decode(master)
