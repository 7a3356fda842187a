"""safetensors: arrays by name in one file, without pickle.

    8 bytes      length n of the header, little-endian
    n bytes      JSON {name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}
    the rest     the arrays' bytes, row by row, without gaps

Read through a memory map: an array is read when it is used.  bf16 and fp8 numbers become float32.
Source: huggingface.co/docs/safetensors.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic_files import replace_file
from ..number_formats import FORMATS

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
          "I8": "|i1", "U8": "|u1", "BOOL": "|b1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}
ENCODED = {"BF16": ("bfloat16", "<u2"), "F8_E4M3": ("float8_e4m3fn", "|u1"),
           "F8_E5M2": ("float8_e5m2", "|u1")}
MOST_HEADER = 100_000_000
ENTRY = {"dtype", "shape", "data_offsets"}


class BadFile(ValueError):
    """A file that is no sound safetensors file; the message names the file and the array."""


def read_safetensors(path: str | Path) -> dict[str, Callable[[], np.ndarray]]:
    """The arrays of a file by name, each read when it is called.

    Raises BadFile, before any array is read, unless all sizes fit together; and OSError.
    """
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 2 <= length <= min(MOST_HEADER, size - 8):
            raise BadFile(f"{path} is no safetensors file, or was cut short: its header should "
                          f"take {length} of {size} bytes")
        header = _parse(path, file.read(length))
    header.pop("__metadata__", None)
    body = size - 8 - length
    _check_offsets(path, header, body)
    data = np.memmap(path, np.uint8, "r", 8 + length) if body else np.empty(0, np.uint8)
    return {name: _reader(data, entry) for name, entry in header.items()}


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    """The header; names that occur twice are refused."""
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice = {name for name in names if names.count(name) > 1} if len(
            set(names)) < len(names) else set()
        if twice:
            raise BadFile(f"{path}: its header has {sorted(twice)[0]!r} twice")
        return dict(pairs)
    try:
        header = json.loads(text, object_pairs_hook=unique)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: its header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise BadFile(f"{path}: its header is no object of arrays")
    return header


def _check_offsets(path: Path, header: Mapping[str, Any], size: int) -> None:
    """Raise BadFile unless the arrays fill the file exactly, one after the other."""
    ranges = []
    for name, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != ENTRY:
            raise BadFile(f"{path}: {name!r} should have {', '.join(sorted(ENTRY))}")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if dtype not in DTYPES and dtype not in ENCODED:
            raise BadFile(f"{path}: {name!r} has the dtype {dtype!r}: known are "
                          f"{', '.join([*DTYPES, *ENCODED])}")
        if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
            raise BadFile(f"{path}: {name!r} has the shape {shape!r} at {offsets!r}: expected "
                          "lists of numbers")
        needed = math.prod(shape) * np.dtype(DTYPES.get(dtype) or ENCODED[dtype][1]).itemsize
        if offsets[1] - offsets[0] != needed:
            raise BadFile(f"{path}: {name!r} of {dtype} {shape} takes {needed} bytes, but lies at "
                          f"{offsets[0]} … {offsets[1]}")
        ranges.append((*offsets, name))
    end = 0
    for first, last, name in sorted(ranges):
        if first != end:
            kind = "overlaps what is before it" if first < end else "leaves a gap before it"
            raise BadFile(f"{path}: {name!r} at {first} … {last} {kind}, which ends at {end}")
        end = last
    if end != size:
        raise BadFile(f"{path}: its arrays end at byte {end}, but {size} are there: the file was "
                      "cut short, or does not belong to its header")


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)


def _reader(data: np.ndarray, entry: Mapping[str, Any]) -> Callable[[], np.ndarray]:
    """A function that reads one array: of its dtype, or of float32 if NumPy lacks that."""
    first, last = entry["data_offsets"]

    def read() -> np.ndarray:
        if entry["dtype"] in ENCODED:
            name, kind = ENCODED[entry["dtype"]]
            codes = data[first:last].view(kind).reshape(entry["shape"])
            return FORMATS[name].decode(codes)
        return data[first:last].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return read


def write_safetensors(path: str | Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """Write arrays, whole or not at all; return the path.  Raises ValueError for other dtypes."""
    names = {np.dtype(kind): name for name, kind in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}     # which transformers asks for
    end, contiguous = 0, []
    for name, array in arrays.items():
        array = np.ascontiguousarray(array).reshape(array.shape)    # row by row, also if transposed
        if array.dtype.newbyteorder("<") not in names:
            raise ValueError(f"{name} is {array.dtype}, which safetensors does not have")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape),
                        "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
        contiguous.append(array)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def write(file: Any) -> None:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in contiguous:
            file.write(array.tobytes())
    return replace_file(path, write)
