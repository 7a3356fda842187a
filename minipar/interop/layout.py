"""A layout as a table: each parameter of a GPT, and the arrays of a file that it is made of.

    Weight("h.0.attn.c_attn.weight", {"…q_proj.weight": (32, 24), "…k_proj…": (16, 24), …}, True)

    file (out, in)   q │ k │ v    each transposed, then side by side    ─▶  c_attn (in, out)

Loading makes the parameter from these arrays; saving makes the arrays from the parameter.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .safetensors import InteropError, SafeTensors, SeveralFiles

Shape = tuple[int, ...]
Arrays = Mapping[str, np.ndarray]


class Weight(NamedTuple):
    """The name of a parameter, and the arrays of the file that make it up: names and shapes.

    Several arrays lie side by side along the last axis of the parameter.
    """

    name: str
    arrays: dict[str, Shape]
    is_transposed: bool = False         # (out, in) in the file

    def from_file(self, arrays: Arrays) -> np.ndarray:
        """The parameter, made from arrays of the file."""
        parts = [arrays[key].T if self.is_transposed else arrays[key] for key in self.arrays]
        return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts, -1))

    def to_file(self, parameter: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of the file, made from the parameter."""
        widths = [shape[0 if self.is_transposed else -1] for shape in self.arrays.values()]
        parts = np.split(parameter, np.cumsum(widths)[:-1], axis=-1)
        return {key: part.T if self.is_transposed else part
                for key, part in zip(self.arrays, parts)}


def check_names(weights: list[Weight], found: Mapping[str, Shape], where: str) -> None:
    """Raise InteropError unless the file has exactly the arrays of the table, of these shapes."""
    expected = {key: shape for weight in weights for key, shape in weight.arrays.items()}
    for key, shape in expected.items():
        if key not in found:
            raise InteropError(f"{where} has no {key!r}, which config.json asks for: get the whole "
                               "model, or mend the sizes in config.json")
        if found[key] != shape:
            raise InteropError(f"{where}: {key!r} has shape {found[key]}, but config.json asks for "
                               f"{shape}: mend the sizes in config.json")
    if unknown := [key for key in found if key not in expected]:
        raise InteropError(f"{where} has {unknown[0]!r}"
                           f"{f' and {len(unknown) - 1} more' if unknown[1:] else ''}, which this "
                           "model has no use for: another model, or a different layout")


class Renamed(Mapping[str, np.ndarray]):
    """The arrays of a file under new names: `names` maps a new name to the one in the file."""

    def __init__(self, file: SafeTensors | SeveralFiles, names: dict[str, str]):
        self.file, self.names = file, names

    def shapes(self) -> dict[str, Shape]:
        """The shapes, without reading the arrays."""
        return {name: self.file.entries[old].shape for name, old in self.names.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self.file[self.names[name]]

    def __iter__(self):
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
