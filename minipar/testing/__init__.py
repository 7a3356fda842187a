"""Tests on simulated and on real ranks: `@worlds(2, 4)`, and the pytest plugin behind it."""

from minipar.testing.worlds import worlds

__all__ = ["worlds"]
