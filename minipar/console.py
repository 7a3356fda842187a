"""The console for people: as wide as their terminal, in colour if it is one, also under mpirun.

    COLUMNS=80              the width, whatever the terminal has
    NO_COLOR=1              no colours on a terminal
    FORCE_COLOR=1           colours in a file or a pipe
"""

import sys
from typing import Any

from rich.console import Console

from .environment import launched, launcher_terminal, width_of


def reader_console(in_file: int, **options: Any) -> Console:
    """A console for stdout; `in_file` is its width where there is neither COLUMNS nor a terminal.

    A rank's own stdout is a pipe to mpirun, so the terminal to which mpirun prints counts for it.
    `options` are those of rich's Console.
    """
    if sys.stdout.isatty():
        return Console(**options)                       # rich knows COLUMNS, too
    path = launcher_terminal() if launched() else None
    return Console(width=width_of(path) or in_file, force_terminal=True if path else None,
                   **options)
