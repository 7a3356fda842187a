"""Notebooks: `%load_ext minipar`, then `%%ranks 4` runs a cell on four simulated ranks.

    %%ranks 4
    total = mp.all_reduce(comm, np.array([rank]))       every rank has comm, rank and size
    print(total)                                        [0] [6]  [1] [6]  …

    magic.py        `%%ranks`: its options, one run, and one report if a rank fails
    cell.py         the cell's code, the names of each rank, and the lines that it prints

The package needs IPython, which every notebook has.
"""

import sys
from typing import Any


def load(ipython: Any) -> None:
    """Make `%%ranks` known to an IPython shell."""
    from .magic import RanksMagic
    ipython.register_magics(RanksMagic(ipython))


def show_in_notebook(picture: Any) -> None:
    """Show a picture below the cell that runs; outside a notebook do nothing."""
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        from IPython.display import display
        display(picture)
