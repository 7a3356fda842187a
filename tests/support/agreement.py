"""Compare what a learner's function gives with what is right; say the difference in one line."""

import numpy as np


def check_same(found, expected, where: str, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    """Raise AssertionError at the first number that differs: where, expected, got, how many."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        raise AssertionError(f"{where}: expected the shape {expected.shape}, got {found.shape}")
    wrong = ~np.isclose(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    if wrong.any():
        at = np.unravel_index(wrong.argmax(), wrong.shape)
        place = f", at {', '.join(map(str, at))}" if at else ""
        raise AssertionError(f"{where}{place}: expected {expected[at]:.6g}, got {found[at]:.6g} "
                             f"({wrong.sum()} of {wrong.size} numbers differ)")
