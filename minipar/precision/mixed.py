"""Mixed precision: numbers kept in 2 bytes or 1, sums of gradients and the weights themselves in 4.

    weight (float32) ─ round ─┐                                 one module, in bfloat16, say
    x ────────────── round ───┴─▶ linear in float32 ─ round ─▶ y, of which float32 holds every bit
                        └ what it saves is kept as codes, of 2 bytes

NumPy has no BLAS for float16 and no bfloat16 at all.  So numbers are *stored* narrow, *computed* in
float32, and *rounded* once per operation: the results of an accelerator whose products add up in
float32, at the speed of float32.  What is narrow here, and counted so: saved activations, and
messages (`parallel/narrow.py`).  What is not: the one array an operation is working on.

The weights of the slab are the "master weights": an update far smaller than a weight, which its
narrow form would round away, adds up in them.  A narrow weight is rounded from its master for each
use, and once more for backward instead of being kept.  Micikevicius et al. 2018 (arXiv 1710.03740).

Per parameter, bytes:      weight   gradient   master   Adam's states    sum
    paper (2 + 2 + 12)        2         2         4           8           16
    here                      -         4         4           8           16
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

from ..autograd import Tensor
from ..autograd.function import operation_hook
from ..autograd.ops.rounding import round_to
from ..autograd.saved import StopForward, current_saved_tensors_hooks, saved_tensors_hooks
from ..backend import Array, record_allocation
from ..nn import GPT, Linear, Module
from ..nn.chain import chain
from ..number_formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16, Format


@dataclass(frozen=True)
class Precision:
    """How a module computes; without formats, as it is.

    `inputs`: what enters it, its weights, and what it saves.  `outputs`: what operations return,
    biases and gains, and gradients that leave through its inputs.  `gradients`: those that come in.
    """

    name: str
    inputs: Format | None = None
    outputs: Format | None = None
    gradients: Format | None = None


def of(name: str, fmt: Format) -> Precision:
    """The same format for everything."""
    return Precision(name, fmt, fmt, fmt)


FP32 = Precision("fp32")
FP16 = of("fp16", FLOAT16)
BF16 = of("bf16", BFLOAT16)
# For layers that are products: both factors of each in 8 bits, what comes out in 16.  Values need
# digits, gradients range: Micikevicius et al. 2022 (arXiv 2209.05433), section 3.
FP8 = Precision("fp8", FLOAT8_E4M3FN, BFLOAT16, FLOAT8_E5M2)
NAMES = ("fp32", "bf16", "fp16", "fp8")


def preset(name: str, model: Module) -> dict[str, Precision]:
    """The precisions of that name for `set_precision`.

    "fp8" is for the linear layers, save one that makes the logits; the rest computes in bfloat16.
    """
    if name not in NAMES:
        raise ValueError(f"unknown precision {name!r}: choose from {', '.join(NAMES)}")
    if name != "fp8":
        return {"": {"fp32": FP32, "bf16": BF16, "fp16": FP16}[name]}
    layers = [name for name, module in model.named_modules() if isinstance(module, Linear)]
    if not (isinstance(model, GPT) and model.config.tied):
        layers.pop()
    return {"": BF16} | dict.fromkeys(layers, FP8)


def set_precision(model: Module, precisions: Precision | Mapping[str, Precision]) -> Module:
    """Change `model`, from outside, before a strategy takes it: how its modules compute.

    A mapping goes from patterns of names to precisions: {"": FP16, "h.*.mlp": FP8, "ln_f": FP32}.
    "" is the model, and each holds for everything inside, unless something inside has its own; "*"
    stands for one name, and of several patterns for a name the last one holds.  The criterion is
    no module: it stays in float32.  Raises ValueError for a pattern that nothing is called, and
    for a model that is not in float32.

    With rematerialization: if the model was changed to that before, the inputs of segments are kept
    as the model's own precision says, else in float32.
    """
    if isinstance(precisions, Precision):
        precisions = {"": precisions}
    wide = [name for name, p in model.named_parameters() if str(p.dtype) != "float32"]
    if wide:
        raise ValueError(f"{wide[0]} is not float32, which narrow numbers are computed in: "
                         "initialize(seed) the model with dtype=np.float32")
    names = {name: (module, "forward") for name, module in model.named_modules()}
    names |= _methods(model)
    unused = [pattern for pattern in precisions
              if not any(_matches(name, pattern) for name in names)]
    if unused:
        raise ValueError(f"no module is called {unused[0]!r}: this model has "
                         f"{', '.join(repr(name) for name in names)}")
    for name, (module, method) in names.items():
        precision = _innermost(name, precisions)
        if precision is not None:
            own = module.__dict__.get(method)       # put there by somebody else, from outside
            setattr(module, method, partial(_run, precision, module, method, own))
    model.transform_parameters(_use)
    return model


def _methods(model: Module) -> dict[str, tuple[Module, str]]:
    """Parts that are methods of the model itself: a GPT's "embed" and "head"."""
    try:
        parts = chain(model)
    except TypeError:
        return {}
    methods = [(part.name, part.apply) for part in parts]
    return {name: (model, apply.__name__) for name, apply in methods
            if getattr(apply, "__self__", None) is model}


def _matches(name: str, pattern: str) -> bool:
    names, patterns = name.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def _innermost(name: str, precisions: Mapping[str, Precision]) -> Precision | None:
    """That of the longest beginning of the name that has one."""
    parts = name.split(".") if name else []
    for length in range(len(parts), -1, -1):
        found = [precision for pattern, precision in precisions.items()
                 if _matches(".".join(parts[:length]), pattern)]
        if found:
            return found[-1]
    return None


# The call of a module that is running; every simulated rank has its own.
_running: ContextVar["_Call | None"] = ContextVar("precision", default=None)
# Whether a module inside said how an array is kept, which may reach one outside through a segment
# that is computed again.
_decided: ContextVar[bool] = ContextVar("decided", default=False)


def _run(precision: Precision, module: Module, method: str, own: Callable | None,
         *inputs: Any, **options: Any) -> Any:
    """A module's method, in its precision; the class is asked anew, since strategies change it."""
    with _Call(precision).running() as call:
        inputs = [call.enter(x) if isinstance(x, Tensor) else x for x in inputs]
        return own(*inputs, **options) if own else \
            getattr(type(module), method)(module, *inputs, **options)


def _use(weight: Tensor) -> Tensor:
    """A transform of parameters: the weight as the module that asks for it computes with it."""
    call = _running.get()
    return weight if call is None else call.use(weight)


class _Kept(NamedTuple):
    """A saved array as whoever hooks in outside has it, and what to make of it."""

    item: Any
    widen: Callable[[Array], Array] | None


class _Call:
    """One call of a module, which rounds and keeps what happens in it."""

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
        """An input of the module."""
        p = self.precision
        return x if p.inputs is None or x.dtype.kind != "f" else round_to(x, p.inputs, p.outputs)

    def use(self, weight: Tensor) -> Tensor:
        """A weight of it; its gradient is narrow, too, before it is added up in float32."""
        p = self.precision
        if p.inputs is None:
            return weight
        fmt = p.inputs if len(weight.shape) > 1 else p.outputs     # a factor of products, or not
        rounded = round_to(weight, fmt, p.outputs)
        self.weights[id(rounded.data)] = rounded.data, weight.data, fmt
        return rounded

    def leave(self, y: Tensor) -> Tensor:
        """What an operation returns."""
        return round_to(y, self.precision.outputs, self.precision.gradients)

    def keep(self, array: Array) -> Any:
        """A hook: of a weight its master, of other numbers codes.

        Statistics, one number for each row, and what are no numbers, masks and ids, stay as they
        are.
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
        """A hook: the array that `keep` was given, rounded."""
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
