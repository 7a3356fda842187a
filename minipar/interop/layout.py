"""A layout: how others name and orient the weights of a model that minipar has.

    name of minipar                  name in the file                          kept there as
    h.0.attn.c_attn.weight (in, out) model.layers.0.self_attn.{q,k,v}_proj     (out, in), in three

A layout reads sizes from config.json and refuses, with key and value, what minipar's GPT does not
do: plausible numbers of a slightly different model would be worse than none.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..nn import GPT, GPTConfig

Arrays = Mapping[str, Callable[[], np.ndarray]]


class BadConfig(ValueError):
    """A config.json that minipar's GPT cannot follow; the message names key and value."""


class Weight(NamedTuple):
    """A parameter of minipar, made of arrays of the file that are joined along the last axis."""

    name: str
    sources: tuple[str, ...]
    is_transposed: bool = False         # in the file (out, in)
    num_columns: tuple[int, ...] = ()   # of each source, if there are several


class Layout(Protocol):
    """One architecture's layout."""

    model_type: str
    prefix: str                 # of most names in the file, perhaps left out there

    def read_config(self, config: Mapping[str, Any]) -> GPTConfig:
        """The sizes and kinds of the model.  Raises BadConfig."""

    def write_config(self, config: GPTConfig) -> dict[str, Any]:
        """config.json of a model.  Raises BadConfig if the layout has no such model."""

    def weights(self, config: GPTConfig) -> list[Weight]:
        """All parameters of the model."""

    def is_ignored(self, name: str) -> bool:
        """True if an array of the file is no weight."""


def expect(config: Mapping[str, Any], **values: Any) -> None:
    """Raise BadConfig unless each key is absent or has one of its values (a tuple: any of them)."""
    for key, value in values.items():
        allowed = value if isinstance(value, tuple) else (value,)
        if key in config and not any(config[key] is each or config[key] == each
                                     and type(config[key]) is type(each) for each in allowed):
            raise BadConfig(f"config.json has {key}={config[key]!r}; this model does "
                            f"{' or '.join(repr(each) for each in allowed)} only")


def number(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """A number of config.json.  Raises BadConfig if it is none, or missing without a default."""
    value = config.get(key, default)
    if value is None and default is None and key in config:
        return None
    if type(value) not in (int, float) or value <= 0:
        raise BadConfig(f"config.json has {key}={value!r}: expected a number above 0")
    return value


def read_weights(layout: Layout, model: GPT, arrays: Arrays) -> None:
    """Fill a model, whose parameters have memory, from a file.

    Raises ValueError for arrays that are missing, unknown, or of another shape, naming the first.
    """
    own = dict(model.named_parameters())
    wanted = layout.weights(model.config)
    found = {_plain(layout, name): read for name, read in arrays.items()}
    used = {source for weight in wanted for source in weight.sources}
    missing = sorted(used - found.keys())
    if missing:
        raise ValueError(f"the file lacks {missing[0]!r}" + (f" and {len(missing) - 1} more"
                                                             if len(missing) > 1 else ""))
    unknown = sorted(name for name in found.keys() - used if not layout.is_ignored(name))
    if unknown:
        raise ValueError(f"the file has {unknown[0]!r}, which the model of config.json has not")
    for weight in wanted:
        parameter = own[weight.name]
        parts = []
        for i, source in enumerate(weight.sources):
            array = found[source]()
            part = array.T if weight.is_transposed else array
            columns = weight.num_columns[i] if weight.num_columns else parameter.shape[-1]
            shape = (*parameter.shape[:-1], columns)
            if part.shape != shape:
                raise ValueError(f"{source!r} has the shape {array.shape}: by config.json it is "
                                 f"{shape[::-1] if weight.is_transposed else shape}")
            parts.append(part)
        for part, stop in zip(parts, np.cumsum([part.shape[-1] for part in parts])):
            parameter.data[..., stop - part.shape[-1]:stop] = part


def _plain(layout: Layout, name: str) -> str:
    return name.removeprefix(layout.prefix)


def written_weights(layout: Layout, config: GPTConfig,
                    state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a file, from a model's state by name."""
    arrays = {}
    for weight in layout.weights(config):
        whole = state[weight.name]
        cuts = np.cumsum(weight.num_columns)[:-1] if weight.num_columns else []
        for source, part in zip(weight.sources, np.split(whole, cuts, axis=-1)):
            name = source if source.startswith("lm_head") else layout.prefix + source
            arrays[name] = part.T if weight.is_transposed else part
    return arrays
