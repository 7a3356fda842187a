"""A capstone's measure: whether a result is valid, and what a leaderboard ranks it by.

It is the body of measure(results, messages, p, **sizes): it returns numbers by name, smaller being
better, and raises ValueError with a sentence for a result that breaks a rule.  Its code is no
secret: students run it, too.
"""

import math
import textwrap
from typing import Any, NamedTuple

import numpy as np

from .service import Failure, Run


class Measure(NamedTuple):
    """The body, the parameters that it may name, and the sizes of the case."""

    code: str
    parameters: dict[str, Any]
    sizes: dict[str, Any]

    def apply(self, run: Run) -> tuple[Failure | None, dict[str, float]]:
        """(why the result is not valid, or None; the numbers)."""
        try:
            numbers = call_body("measure", "results, messages, p", self.code, self.parameters,
                                self.sizes, run.results, run.messages, len(run.results))
            numbers = {name: float(value) for name, value in numbers.items()}
            if not all(map(math.isfinite, numbers.values())):       # JSON has no NaN
                raise ValueError(f"the result measures {numbers}, which is not finite")
        except Exception as error:      # a result of any form: it came from the submission
            sentence = str(error) if isinstance(error, ValueError) else \
                f"the result is not of the form that the task asks for ({error!r})"
            return Failure(None, "Invalid", sentence[:1000]), {}
        return None, numbers


def call_body(name: str, head: str, code: str, parameters: dict[str, Any], sizes: dict[str, Any],
              *arguments: Any) -> Any:
    """Call `code`, the body of name(head, **sizes), with the parameters as global names."""
    text = f"def {name}({', '.join([head, *sizes])}):\n" + textwrap.indent(code, "    ")
    space: dict[str, Any] = {"np": np, **parameters}
    exec(compile(text, f"<{name}>", "exec"), space)
    return space[name](*arguments, **sizes)
