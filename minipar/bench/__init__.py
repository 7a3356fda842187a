"""`python -m minipar.bench [names] [--rounds N] [--quick]`: one table, plain and reproducible.

Each measurement runs in a fresh process with one thread per rank; what is compared runs there in
turn, interleaved, and medians are compared.  PyTorch's rows appear where torch can be imported.
"""

from .table import main

__all__ = ["main"]
