"""The line of the program, even if minipar's own code is between it and the communicator.

    minipar/parallel/zero/zero1.py:88, called at train.py:12

A call keeps code and line number; their text is made when a report needs it.
"""

import sys
from pathlib import Path
from types import CodeType, FrameType

from ...communicator import HERE

PACKAGE = str(Path(HERE).parent)
NO_PROGRAM = (PACKAGE, sys.prefix, sys.base_prefix, "<frozen ")     # files of minipar and Python

Place = tuple[tuple[CodeType, int], ...]


def find_place(frame: FrameType | None) -> Place:
    """Code and line of the innermost frame outside `minipar.comm`, then of the program's frame."""
    while frame is not None and (frame.f_code.co_filename.startswith(HERE)
                                 or frame.f_code.co_filename.endswith("contextlib.py")):
        frame = frame.f_back
    if frame is None:
        return ()
    inner = frame.f_code, frame.f_lineno
    while frame is not None and frame.f_code.co_filename.startswith(NO_PROGRAM):
        frame = frame.f_back
    outer = inner if frame is None else (frame.f_code, frame.f_lineno)
    return (inner,) if inner == outer else (inner, outer)


def place_name(place: Place) -> str:
    """`place` in words."""
    return ", called at ".join(f"{code.co_filename}:{line}" for code, line in place) \
        or "an unknown line"
