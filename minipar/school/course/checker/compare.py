"""Compare what the ranks returned, and what they sent, with what was expected; measure a capstone.

This runs in the checker's process, on values that came over a pipe.  The submission cannot reach
it, whatever it does to NumPy in its own process.
"""

import math
import textwrap
from typing import Any, NamedTuple

import numpy as np

from .broker import HEADER, Delivery
from .service import RunFailure, RunResult


class Measure(NamedTuple):
    """What a leaderboard measures: the body of measure(results, messages, p, **sizes).

    It returns numbers by name, smaller being better, and raises ValueError with a sentence for a
    result that breaks a rule.  It may use `parameters`.  Its code is no secret: students run it.
    """

    code: str
    parameters: dict[str, Any]
    sizes: dict[str, Any]

    def apply(self, run: RunResult) -> tuple[RunFailure | None, dict[str, float]]:
        """(why the result is not valid, or None; the numbers)."""
        try:
            numbers = call_body("measure", "results, messages, p", self.code, self.parameters,
                                self.sizes, run.results, run.messages, len(run.results))
            numbers = {name: float(value) for name, value in numbers.items()}
            if not all(map(math.isfinite, numbers.values())):       # JSON has no NaN
                raise ValueError(f"the result measures {numbers}, which is not finite")
        except Exception as error:      # the result may have any form: it is the submission's
            sentence = str(error) if isinstance(error, ValueError) else \
                f"the result is not of the form that the task asks for ({error!r})"
            return RunFailure(None, "Invalid", sentence[:1000]), {}
        return None, numbers


def call_body(name: str, head: str, code: str, parameters: dict[str, Any], sizes: dict[str, Any],
              *arguments: Any) -> Any:
    """Call `code`, the body of name(head, **sizes), with the parameters as global names."""
    text = f"def {name}({', '.join([head, *sizes])}):\n" + textwrap.indent(code, "    ")
    space: dict[str, Any] = {"np": np, **parameters}
    exec(compile(text, f"<{name}>", "exec"), space)
    return space[name](*arguments, **sizes)


def judge(run: RunResult, expected: list[dict[str, Any]], traffic: dict[str, Any], tolerance: float,
          measure: Measure | None = None) -> tuple[RunFailure | None, dict[str, float]]:
    """(the first difference between a run and what is expected, or None; what is measured)."""
    failure = first_failure(run, expected, traffic, tolerance)
    return (failure, {}) if failure or measure is None else measure.apply(run)


def first_failure(run: RunResult, expected: list[dict[str, Any]], traffic: dict[str, Any],
                  tolerance: float) -> RunFailure | None:
    """The failure of a run, else the first wrong value, else too much traffic; or None."""
    if run.failure is not None:
        return run.failure
    for rank, (found, wanted) in enumerate(zip(run.results, expected)):
        assert found is not None
        values = {**found["arguments"], "return": found["return"]}
        for name, value in wanted.items():
            difference = differ(name_of(name), value, values.get(name), tolerance)
            if difference:
                return RunFailure(rank, "WrongValue", difference)
    if run.num_splits > traffic.get("splits", math.inf):
        return RunFailure(None, "Traffic", "split tells about the other ranks without a message: "
                          "in this task exchange data with messages, which count")
    excess = too_much(run.messages, traffic)
    return RunFailure(None, "Traffic", excess) if excess else None


def name_of(name: str) -> str:
    """A result's name in a message to the student."""
    return "the result" if name == "return" else f"{name} afterwards"


def differ(where: str, wanted: Any, found: Any, tolerance: float) -> str:
    """The difference of `found` from `wanted`, in a sentence; "" if there is none."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict) or set(found) != set(wanted):
            return f"{where}: expected a dict with {', '.join(wanted)}, got {brief(found)}"
        parts = [(f"{where}[{key!r}]", wanted[key], found[key]) for key in wanted]
    elif isinstance(wanted, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(wanted):
            return f"{where}: expected {len(wanted)} values, got {brief(found)}"
        parts = [(f"{where}[{i}]", *pair) for i, pair in enumerate(zip(wanted, found))]
    elif isinstance(wanted, np.ndarray | float):
        return differ_in_numbers(where, np.asarray(wanted), found, tolerance)
    else:
        same = type(found) is type(wanted) and found == wanted
        return "" if same else f"{where}: expected {wanted!r}, got {brief(found)}"
    return next((text for part in parts if (text := differ(*part, tolerance))), "")


def differ_in_numbers(where: str, wanted: np.ndarray, found: Any, tolerance: float) -> str:
    """The difference of an array or a number, in a sentence; "" if there is none."""
    if not isinstance(found, np.ndarray | float | int) or isinstance(found, bool):
        return f"{where}: expected an array of shape {wanted.shape}, got {brief(found)}"
    found = np.asarray(found)
    if found.dtype.kind == "O":             # an int of more than 64 bits
        return f"{where}: expected an array of shape {wanted.shape}, got {brief(found.item())}"
    if found.shape != wanted.shape:
        return f"{where}: expected shape {wanted.shape}, got {found.shape}"
    if found.dtype.kind != wanted.dtype.kind and wanted.dtype.kind != "f":
        return f"{where}: expected dtype {wanted.dtype}, got {found.dtype}"
    size = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=1.0)) \
        if wanted.dtype.kind == "f" else 0
    with np.errstate(invalid="ignore"):
        close = np.isclose(found, wanted, rtol=0, atol=tolerance * size, equal_nan=True) \
            if size else found == wanted
    if close.all():
        return ""
    place = tuple(map(int, np.argwhere(~close)[0]))
    at = f" at index {place[0] if len(place) == 1 else place}" if place else ""
    pair = wanted[place].item(), found[place].item()
    one, other = (f"{value:.10g}" for value in pair)
    if one == other:
        one, other = (f"{value:.17g}" for value in pair)
    return (f"{where}{at}: expected {one}, got {other} "
            f"({int((~close).sum())} of {close.size} numbers differ)")


def brief(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '…'}"


def too_much(messages: list[Delivery], traffic: dict[str, Any]) -> str:
    """The first limit that the messages exceed, in a sentence; "" if none."""
    pairs = traffic.get("pairs")
    if pairs is not None:
        allowed = {tuple(pair) for pair in pairs}
        for message in messages:
            if (message.source, message.dest) not in allowed:
                return (f"rank {message.source} sent {message.num_bytes} bytes to rank "
                        f"{message.dest}: in this task it does not talk to that rank")
    counted = totals(messages)
    if "messages" not in traffic:       # else empty messages would tell something for 0 bytes
        counted["bytes"] += HEADER * len(messages)
    for name, found in counted.items():
        if name in traffic and found > traffic[name]:
            return (f"the values are right, but it took {found:,} {name.replace('_', ' ')}; "
                    f"{traffic[name]:,} are enough")
    return ""


def totals(messages: list[Delivery]) -> dict[str, int]:
    """The messages counted in four ways: number, bytes, rounds, bytes of the busiest rank."""
    by_rank: dict[int, int] = {}
    for message in messages:
        by_rank[message.source] = by_rank.get(message.source, 0) + message.num_bytes
    return {"messages": len(messages), "bytes": sum(by_rank.values()),
            "rounds": max((message.round for message in messages), default=0),
            "bytes_of_a_rank": max(by_rank.values(), default=0)}
