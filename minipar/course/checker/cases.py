"""The public cases of a task as a file: arguments, results and limits, but no code that made them.

    cases/NAME.npz      "head": JSON as bytes; "0", "1", …: the arrays of all cases

So students see examples, and no oracle.
"""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .measure import Measure
from .outcome import Outcome
from .ranks.values import decode, encode


class PublicCase(NamedTuple):
    """A case with everything that is needed to run and to judge it."""

    outcome: Outcome                    # what it is, not run yet
    function: str
    is_serial: bool
    tolerance: float
    arguments: list[dict[str, Any]]
    expected: list[dict[str, Any]]
    traffic: dict[str, Any]
    measure: Measure | None             # of a capstone


def pack_cases(cases: Sequence[PublicCase]) -> bytes:
    """The cases of a task as the bytes of a file."""
    arrays: dict[str, np.ndarray] = {}
    heads = [{**case._asdict(), "outcome": case.outcome._asdict(), "traffic": plain(case.traffic),
              "arguments": encode(case.arguments, arrays),
              "expected": encode(case.expected, arrays)} for case in cases]
    file = io.BytesIO()
    np.savez_compressed(file, head=np.frombuffer(json.dumps(heads).encode(), np.uint8),
                        **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def read_cases(file: Path) -> list[PublicCase]:
    """The cases in a file."""
    with np.load(file, allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files if name != "head"}
        heads = json.loads(found["head"].tobytes())
    return [PublicCase(**{**head, "outcome": Outcome(**head["outcome"]),
                          "arguments": decode(head["arguments"], arrays),
                          "expected": decode(head["expected"], arrays),
                          "measure": head["measure"] and Measure(*head["measure"])})
            for head in heads]


def plain(traffic: dict[str, Any]) -> dict[str, Any]:
    """Limits as JSON has them."""
    return {name: [[int(a), int(b)] for a, b in value] if name == "pairs" else float(value)
            for name, value in traffic.items()}
