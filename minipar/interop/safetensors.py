"""safetensors: arrays by name in a file that holds nothing else, so reading it runs no code.

    8 bytes    length of the header, little-endian
    header     {"wte.weight": {"dtype": "F32", "shape": [96, 24], "data_offsets": [0, 9216]}, …}
    data       the arrays, row by row, one directly behind the other

    arrays = SafeTensors("model.safetensors")       the file is mapped: no array is read yet
    arrays["wte.weight"]                            an array; BF16 and F8 as float32
    arrays["wte.weight"][:12]                       reads these pages only, unless it is BF16 or F8
    write_safetensors("model.safetensors", arrays)      atomically

A large model is several files with an index, {"weight_map": {name: file}}.  `open_safetensors`
takes a file or a folder.  Whatever a header claims is compared with the file before it is used.

Source: the format's description in the README of huggingface/safetensors.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..number_formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, Format

LONGEST_HEADER = 100_000_000            # bytes, as in Hugging Face's library
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4",
          "I32": "<i4", "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
CODED = {"BF16": ("<u2", BFLOAT16), "F8_E4M3": ("u1", FLOAT8_E4M3FN.with_overflow("nan")),
         "F8_E5M2": ("u1", FLOAT8_E5M2)}
STORED: dict[str, tuple[str, Format | None]] = {
    **{name: (code, None) for name, code in DTYPES.items()}, **CODED}
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class InteropError(ValueError):
    """An unusable file, or a model that no layout fits; one line says why, and the remedy."""


class Entry(NamedTuple):
    """The place of one array: its dtype as in STORED, its shape, and its bytes in the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafeTensors(Mapping[str, np.ndarray]):
    """The arrays of one file by name, read when they are asked for.  Raises InteropError."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            self._bytes = np.memmap(self.path, np.uint8, mode="r")
        except (OSError, ValueError) as error:      # ValueError: it is empty
            raise InteropError(f"{self.path} cannot be read ({error}): give a .safetensors file") \
                from error
        header, self._start = read_header(self.path, self._bytes)
        self.metadata = header.pop("__metadata__", {})
        num_bytes = len(self._bytes) - self._start
        self.entries = {name: entry_of(self.path, name, found) for name, found in header.items()}
        check_places(self.path, self.entries, num_bytes)

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self.entries[name]
        code, number_format = STORED[entry.dtype]
        data = self._bytes[self._start + entry.begin:self._start + entry.end]
        array = np.asarray(data).view(code).reshape(entry.shape)
        return number_format.decode(array.astype(code[-2:])) if number_format else array

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class SeveralFiles(Mapping[str, np.ndarray]):
    """The arrays of a folder with an index, as if they were in one file.  Raises InteropError."""

    def __init__(self, index: Path):
        self.path, found = index, read_json(index)
        names = found.get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(f, str) for f in names.values()):
            raise InteropError(f"{index}: weight_map is not {{name: file}}: get the file again")
        if outside := [file for file in names.values() if Path(file).name != file]:
            raise InteropError(f"{index}: {outside[0]!r} is not the name of a file in this folder: "
                               "put the file there, and name it so")
        files = {file: SafeTensors(index.parent / file) for file in dict.fromkeys(names.values())}
        for name, file in names.items():
            if name not in files[file]:
                raise InteropError(f"{index.parent / file} has no {name!r}, which {index.name} "
                                   "says is there: get both files again")
            if others := [other for other in files if other != file and name in files[other]]:
                raise InteropError(f"{name!r} is in {file} and in {others[0]}: leave one out")
        self._file_of = {name: files[file] for name, file in names.items()}
        self.entries = {name: file.entries[name] for name, file in self._file_of.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._file_of[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def open_safetensors(path: str | Path) -> SafeTensors | SeveralFiles:
    """The arrays of a file, of an index, or of a folder with either.  Raises InteropError."""
    path = Path(path)
    refuse_pickle(path)
    if path.name.endswith(".index.json"):
        return SeveralFiles(path)
    if not path.is_dir():
        return SafeTensors(path)
    if (path / INDEX).exists():
        return SeveralFiles(path / INDEX)
    if (path / WHOLE).exists():
        return SafeTensors(path / WHOLE)
    for file in sorted(path.iterdir()):
        refuse_pickle(file)
    raise InteropError(f"{path} has neither {WHOLE} nor {INDEX}: give the folder of a model that "
                       "save_pretrained() wrote")


def refuse_pickle(path: Path) -> None:
    """Raise InteropError for a file that can run any program when it is read."""
    if path.suffix in PICKLES:
        raise InteropError(f"{path} is a pickle, which can run any program when it is read: get "
                           "the model as safetensors, or write it so where you trust it: "
                           "AutoModelForCausalLM.from_pretrained(…).save_pretrained(DIR)")


def read_header(path: Path, content: np.ndarray) -> tuple[dict[str, Any], int]:
    """(the header of a file, the byte at which its data begin).  Raises InteropError."""
    length = int.from_bytes(content[:8].tobytes(), "little")
    if len(content) < 8 or length > min(LONGEST_HEADER, len(content) - 8):
        raise InteropError(f"{path} is no safetensors file, or is truncated: it has "
                           f"{len(content):,} bytes, but its header claims {length:,}: get it "
                           "again")
    return parse(path, content[8:8 + length].tobytes()), 8 + length


def no_number(name: str) -> None:
    """Raise ValueError for NaN and Infinity, which JSON does not have."""
    raise ValueError(f"{name} is no number")


def parse(path: Path, text: bytes) -> dict[str, Any]:
    """A JSON object in which no key occurs twice.  Raises InteropError."""
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in found if keys.count(key) > 1)
            raise InteropError(f"{path}: {twice!r} is there twice: leave one out")
        return found
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=once, parse_constant=no_number)
    except InteropError:
        raise
    except (ValueError, RecursionError) as error:
        raise InteropError(f"{path} has no JSON where it is expected ({error}): get it again") \
            from error
    if not isinstance(found, dict):
        raise InteropError(f"{path}: a JSON object was expected, not {type(found).__name__}: get "
                           "it again")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.  Raises InteropError."""
    try:
        return parse(path, path.read_bytes())
    except OSError as error:
        raise InteropError(f"{path} cannot be read ({error.strerror}): give the folder of a model "
                           "that save_pretrained() wrote") from error


def entry_of(path: Path, name: str, found: Any) -> Entry:
    """The entry of one array, checked.  Raises InteropError."""
    def is_size(value: Any) -> bool:
        return type(value) is int and 0 <= value < 1 << 63

    def sizes(key: str) -> list[int]:
        values = found.get(key)
        if not isinstance(values, list) or not all(map(is_size, values)):
            raise InteropError(f"{path}: {key} of {name!r} is {values!r:.60}, not sizes: get it "
                               "again")
        return values
    if not isinstance(found, dict):
        raise InteropError(f"{path}: {name!r} is {found!r:.60}, not dtype, shape and data_offsets: "
                           "get it again")
    dtype = found.get("dtype")
    if not isinstance(dtype, str) or dtype not in STORED:
        raise InteropError(f"{path}: {name!r} has dtype {dtype!r:.60}, which is not known here: "
                           f"write it as one of {', '.join(STORED)}")
    shape, places = tuple(sizes("shape")), sizes("data_offsets")
    if len(places) != 2:
        raise InteropError(f"{path}: data_offsets of {name!r} are {len(places)} numbers, not 2: "
                           "get it again")
    entry = Entry(dtype, shape, *places)
    needed = math.prod(shape) * np.dtype(STORED[dtype][0]).itemsize
    if entry.end - entry.begin != needed:
        raise InteropError(f"{path}: {name!r} is {dtype} {list(shape)}, {needed:,} bytes, but has "
                           f"{entry.end - entry.begin:,}: get it again")
    return entry


def check_places(path: Path, entries: Mapping[str, Entry], num_bytes: int) -> None:
    """Raise InteropError unless the arrays fill the data, one directly behind the other."""
    at, before = 0, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
        if entry.end > num_bytes:
            raise InteropError(f"{path}: {name!r} ends at byte {entry.end:,} of {num_bytes:,}: the "
                               "file is truncated, get it again")
        if entry.begin != at:
            how = "overlaps with" if entry.begin < at else "leaves a gap behind"
            raise InteropError(f"{path}: {name!r} begins at byte {entry.begin:,}, not {at:,}: it "
                               f"{how} {before!r}, get the file again")
        at, before = entry.end, name
    if at < num_bytes:
        raise InteropError(f"{path} has {num_bytes - at:,} bytes behind its last array: get it "
                           "again")
