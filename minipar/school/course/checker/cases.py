"""A case that can be run: arguments, results and limits, but no code that made them.

    run_case            runs a case on a submission, for students and for grading
    cases/NAME.npz      the public cases of a task: "head" is JSON as bytes; "0", "1", … are arrays

So students see examples, but not the code that computes the expected results.
"""

import io
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .compare import Measure, judge
from .outcome import Outcome
from .ranks.values import decode, encode
from .runner import Job, Worker
from .service import RunResult


class ReadyCase(NamedTuple):
    """A case with everything that is needed to run and to judge it."""

    outcome: Outcome                    # what the case is; not run yet
    function: str
    is_serial: bool
    tolerance: float
    arguments: list[dict[str, Any]]
    expected: list[dict[str, Any]]
    traffic: dict[str, Any]
    measure: Measure | None             # of a capstone


def run_case(case: ReadyCase, files: dict[str, str], worker: Worker) -> tuple[Outcome, RunResult]:
    """Run a case on the modules of a submission, and judge it."""
    started = time.monotonic()
    run = worker.run(Job(files, case.outcome.task, case.function, case.arguments, case.is_serial))
    seconds = time.monotonic() - started
    failure, measured = judge(run, case.expected, case.traffic, case.tolerance, case.measure)
    printed = next((text for text in run.printed if text.strip()), "")
    return case.outcome._replace(failure=failure, printed=printed, measured=measured,
                                 seconds=seconds), run


def pack_cases(cases: Sequence[ReadyCase]) -> bytes:
    """The cases of a task as the bytes of a file."""
    arrays: dict[str, np.ndarray] = {}
    heads = [{**case._asdict(), "outcome": case.outcome._asdict(), "traffic": plain(case.traffic),
              "arguments": encode(case.arguments, arrays),
              "expected": encode(case.expected, arrays)} for case in cases]
    file = io.BytesIO()
    np.savez_compressed(file, head=np.frombuffer(json.dumps(heads).encode(), np.uint8),
                        **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def read_cases(file: Path) -> list[ReadyCase]:
    """The cases in a file."""
    with np.load(file, allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files if name != "head"}
        heads = json.loads(found["head"].tobytes())
    return [ReadyCase(**{**head, "outcome": Outcome(**head["outcome"]),
                         "arguments": decode(head["arguments"], arrays),
                         "expected": decode(head["expected"], arrays),
                         "measure": head["measure"] and Measure(*head["measure"])})
            for head in heads]


def plain(traffic: dict[str, Any]) -> dict[str, Any]:
    """The limits of messages, as JSON has them."""
    return {name: [[int(a), int(b)] for a, b in value] if name == "pairs" else float(value)
            for name, value in traffic.items()}
