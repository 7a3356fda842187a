"""Linear equations, as a solver takes them: a sparse matrix and its right sides."""

import numpy as np


class Equations:
    """Linear equations as a sparse matrix: the entries by row and column, and the right sides.

    `least` are the right sides, or −∞ where the left side may be less.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.sums: list[float] = []
        self.least: list[float] = []

    def add(self, variables: np.ndarray, total: float = 0.0, equal_to: int | None = None,
            or_less: bool = False) -> None:
        """Let the `variables` add up to `total`, or to the variable `equal_to`; or to less."""
        entries = [(variable, 1.0) for variable in variables.tolist()]
        entries += [] if equal_to is None else [(int(equal_to), -1.0)]
        self.rows += [len(self.sums)] * len(entries)
        self.columns += [variable for variable, _ in entries]
        self.values += [factor for _, factor in entries]
        self.sums.append(total)
        self.least.append(-np.inf if or_less else total)
