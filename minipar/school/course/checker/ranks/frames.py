"""Frames: the messages between the checker and a rank, over a pipe.

    4 bytes        8 bytes          JSON                            raw bytes
    size of JSON   size of arrays   {"kind": "send", "peer": 1, …}  the arrays, one after another

The JSON has name, dtype and shape of each array.  There is no pickle and no archive: a frame from
untrusted code can hold wrong numbers, and nothing worse.  Sizes are checked before memory is taken.
"""

import json
import struct
from typing import Any, NamedTuple

import numpy as np

HEAD = struct.Struct("<IQ")
MAX_JSON = 1 << 20                  # bytes
MAX_ARRAYS = 8 << 20                # bytes of all arrays of a frame together
MAX_DIMENSIONS = 32                 # of an array
MAX_TEXT = 4000                     # characters of a text that is kept
DTYPES = {np.dtype(name).str for name in (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "float32", "float64")}


class BadFrame(Exception):
    """A frame breaks a rule: too large, or not of this form."""


class Frame(NamedTuple):
    """A message between checker and rank: `fields` are plain JSON, `arrays` are by name."""

    fields: dict[str, Any]
    arrays: dict[str, np.ndarray]


def pack(fields: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> bytes:
    """A frame as bytes.  Raises BadFrame for an array that may not travel, or too many bytes."""
    heads, parts = [], []
    for name, array in (arrays or {}).items():
        array = np.asarray(array)
        if array.dtype.str not in DTYPES:
            raise BadFrame(f"an array of dtype {array.dtype}: only numbers and bools can be sent, "
                           "or returned")
        heads.append([name, array.dtype.str, list(array.shape)])
        parts.append(np.ascontiguousarray(array).tobytes())
    header = json.dumps({**fields, "arrays": heads}).encode()
    size = sum(map(len, parts))
    check_sizes(len(header), size)
    return b"".join([HEAD.pack(len(header), size), header, *parts])


def check_sizes(num_json: int, num_arrays: int) -> None:
    """Raise BadFrame for more bytes than a frame may have."""
    if num_json > MAX_JSON or num_arrays > MAX_ARRAYS:
        raise BadFrame(f"{num_json + num_arrays:,} bytes at once; at most {MAX_JSON:,} of text and "
                       f"{MAX_ARRAYS:,} of arrays")


def unpack(header: bytes, data: bytes) -> Frame:
    """The frame of these bytes.  Raises BadFrame if they are not one."""
    try:
        fields = json.loads(header)
        heads, arrays, start = fields.pop("arrays"), {}, 0
        for name, dtype, shape in heads:
            if dtype not in DTYPES or len(shape) > MAX_DIMENSIONS \
                    or any(type(n) is not int or n < 0 for n in shape):
                raise BadFrame(f"an array of dtype {dtype!r:.40} and shape {shape!r:.40}")
            count = int(np.prod(shape, dtype=object)) if shape else 1
            size = count * np.dtype(dtype).itemsize
            if start + size > len(data):
                raise BadFrame(f"array {name} has fewer bytes than its shape says")
            arrays[str(name)] = np.frombuffer(data, dtype, count, start).reshape(shape).copy()
            start += size
    except BadFrame:
        raise
    except Exception as error:
        raise BadFrame(f"not a frame: {error}") from None
    if not isinstance(fields, dict) or start != len(data):
        raise BadFrame("not a frame: bytes are left over")
    return Frame(fields, arrays)


def clean(text: Any, most: int = MAX_TEXT) -> str:
    """A text from a rank: not longer than `most`, and such that it can be written as UTF-8."""
    return str(text)[:most].encode(errors="replace").decode()


class Assembler:
    """Assembles frames from bytes that arrive in pieces."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Add bytes; return the frames that are whole now.  Raises BadFrame."""
        self.buffer += data
        found = []
        while len(self.buffer) >= HEAD.size:
            num_json, num_arrays = HEAD.unpack_from(self.buffer)
            check_sizes(num_json, num_arrays)
            middle, end = HEAD.size + num_json, HEAD.size + num_json + num_arrays
            if len(self.buffer) < end:
                break
            found.append(unpack(bytes(self.buffer[HEAD.size:middle]),
                                bytes(self.buffer[middle:end])))
            del self.buffer[:end]
        return found
