"""Write arrays as safetensors: one file, or several with an index.

No file is replaced before all new ones are written (`atomic_files.py`).
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..atomic_files import replace_files
from .safetensors import DTYPES, INDEX, STORED, WHOLE, InteropError

LARGEST_FILE = 5_000_000_000            # bytes, as in Hugging Face's library
NAMES = {np.dtype(code): name for name, code in DTYPES.items()}
Arrays = Mapping[str, np.ndarray]


def stored_dtype(array: np.ndarray, dtype: str | None) -> str:
    """The name of the dtype in which an array is written: `dtype` for floats, else its own."""
    if dtype is not None and array.dtype.kind == "f":
        return dtype
    if array.dtype.newbyteorder("<") not in NAMES:
        raise InteropError(f"safetensors have no dtype {array.dtype}: convert the array first")
    return NAMES[array.dtype.newbyteorder("<")]


def stored(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """The codes of an array, row by row, as they lie in a file.  Raises InteropError.

    An array that was transposed is in a different order in memory, so it is copied.
    """
    code, number_format = STORED[dtype]
    with np.errstate(over="ignore"):
        codes = number_format.encode(array) if number_format else array
        codes = np.asarray(codes, dtype=code, order="C")
    if array.dtype.kind == "f" and (number_format or array.dtype.itemsize > codes.itemsize):
        back = number_format.decode(codes) if number_format else codes
        if not np.array_equal(np.isfinite(back), np.isfinite(array)):
            raise InteropError(f"{name!r} has numbers up to {np.nanmax(np.abs(array)):.4g}, above "
                               f"the largest of {dtype}: choose a dtype of a wider range")
    return codes


def write_safetensors(path: str | Path, arrays: Arrays, dtype: str | None = None,
                      metadata: Mapping[str, str] | None = None) -> Path:
    """Write arrays into one file, floats as `dtype` (None: as they are); return its path."""
    path = Path(path)
    replace_files({path: writer(arrays, dtype, metadata)})
    return path


def writer(arrays: Arrays, dtype: str | None = None, metadata: Mapping[str, str] | None = None
           ) -> Callable[[BinaryIO], None]:
    """A function that writes arrays into an open file."""
    dtypes = {name: stored_dtype(array, dtype) for name, array in arrays.items()}
    width = {name: np.dtype(STORED[dtypes[name]][0]).itemsize for name in arrays}
    order = sorted(arrays, key=lambda name: -width[name])       # so that every array is aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        begin, end = end, end + arrays[name].size * width[name]
        header[name] = {"dtype": dtypes[name], "shape": list(arrays[name].shape),
                        "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(stored(name, arrays[name], dtypes[name]).data)
    return write


def model_files(arrays: Arrays, dtype: str | None = None, largest: int = LARGEST_FILE
                ) -> dict[str, Callable[[BinaryIO], Any]]:
    """Functions that write a model's files, by name: one file, or several and an index.

    A file has at most `largest` bytes of arrays.  Arrays are not divided, so a larger one has a
    file of its own.
    """
    parts: list[dict[str, np.ndarray]] = [{}]
    total = used = 0
    for name, array in arrays.items():
        size = array.size * np.dtype(STORED[stored_dtype(array, dtype)][0]).itemsize
        if parts[-1] and used + size > largest:
            parts.append({})
            used = 0
        parts[-1][name] = array
        used, total = used + size, total + size
    metadata = {"format": "pt"}                 # without it, transformers refuse the file
    if len(parts) == 1:
        return {WHOLE: writer(arrays, dtype, metadata)}
    names = [f"model-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
    index = {"metadata": {"total_size": total},
             "weight_map": {key: file for file, part in zip(names, parts) for key in part}}
    files: dict[str, Callable[[BinaryIO], Any]] = {
        file: writer(part, dtype, metadata) for file, part in zip(names, parts)}
    files[INDEX] = lambda file: file.write(json.dumps(index, indent=1).encode())
    return files
