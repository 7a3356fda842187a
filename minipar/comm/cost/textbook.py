"""The cost of an algorithm by its closed form in the textbooks, given in `comm/algorithms.py`."""

from ..algorithms import known
from .alpha_beta import Cost


def textbook(operation: str, algorithm: str, p: int, num_bytes: float,
             num_segments: int | None = None) -> Cost:
    """The textbook's cost; `num_bytes` counts the whole vector, see `predict`.

    `num_segments` is for a pipelined chain (by default the best number).  The number of messages is
    not known: NaN.  Raises ValueError for an unknown operation or algorithm, and for one whose
    entry gives no form.
    """
    form = known(operation, algorithm, "form")
    rounds, size, reduced = form(ClosedFormSizes(p, num_bytes, num_segments))
    return Cost(rounds, size, float("nan"), reduced)


class ClosedFormSizes:
    """The arguments of `textbook`, and the numbers that make up the closed forms.

    Recursive doubling and halving run among `power_of_two` ranks.  If there are others
    (`has_others` is 1), these give their vectors before and get the result after.
    """

    def __init__(self, p: int, n: float, num_segments: int | None):
        self.p, self.n, self.num_segments = p, n, num_segments      # n: bytes of the whole vector
        self.log_up = (p - 1).bit_length()                          # ⌈log₂ p⌉
        self.log_down = p.bit_length() - 1                          # ⌊log₂ p⌋
        self.power_of_two = 1 << self.log_down                      # the largest one up to p
        self.has_others = int(p != self.power_of_two)               # 1 if p is no power of two
        self.chunk = n / p                                          # one of p equal chunks
        self.all_but_one = n * (p - 1) / p                          # all chunks but one …
        # … and the same, if the vector is cut into `power_of_two` chunks
        self.all_but_one_of_power = n * (self.power_of_two - 1) / self.power_of_two
