"""The calibration of a real machine: its links, and the fastest algorithms for each size.

    table for 4 ranks on 1 node         all_reduce       0 B ─▶ recursive_doubling, tree, ring
                                                   120 000 B ─▶ ring, rabenseifner, …

`minipar calibrate` measures both (measure.py) and keeps them in the user's cache folder, in a file
for each host and MPI.  When the world is made, rank 0 reads the file and sends it to all, so that
all ranks choose alike.  A measured table is preferred to the model, since it includes effects that
the model ignores, such as caches.  For each size the table ranks the measured algorithms, the
fastest first; names of algorithms that do not exist or cannot run are skipped.
"""

import json
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...atomic_files import replace_file
from ...environment import cache_folder, minipar_command
from ..simulated.links import Link

FORMAT = 1      # of the file; no other is read

Rows = tuple[tuple[int, tuple[str, ...]], ...]      # (first number of bytes, fastest first)


class CalibrationTable(NamedTuple):
    """The measurements of `num_ranks` ranks on `num_nodes` nodes: rows by operation."""

    num_ranks: int
    num_nodes: int
    rows: Mapping[str, Rows]


@dataclass(frozen=True)
class Calibration:
    """Links within a node and between nodes, combining in bytes per second, measured tables."""

    within: Link
    between: Link
    combining: float
    tables: tuple[CalibrationTable, ...] = ()

    def ranking(self, operation: str, num_bytes: int, num_ranks: int,
                num_nodes: int) -> tuple[str, ...]:
        """The algorithms, the fastest first, by the table with the most ranks up to `num_ranks`.

        It is empty if no table has `operation` for as many nodes and at most as many ranks.
        """
        known = [table for table in self.tables + BUILT_IN.tables if operation in table.rows
                 and table.num_nodes == num_nodes and table.num_ranks <= num_ranks]
        if not known:
            return ()
        rows = max(known, key=lambda table: table.num_ranks).rows[operation]
        return [names for start, names in rows if start <= num_bytes][-1]

    def with_tables(self, *tables: CalibrationTable) -> "Calibration":
        """A copy with these tables only; of two for the same ranks and nodes, the later counts."""
        by_place = {table[:2]: table for table in tables}
        return Calibration(self.within, self.between, self.combining, tuple(by_place.values()))

    def as_json(self) -> str:
        """Text for `from_json`."""
        tables = [{"ranks": t.num_ranks, "nodes": t.num_nodes, **t.rows} for t in self.tables]
        return json.dumps({"format": FORMAT, "within": self.within, "between": self.between,
                           "combining": self.combining, "tables": tables}, indent=1)


# Measured with MPICH 5.0 on two cores of an AMD Zen 5; the table with 2 ranks.  Used on machines
# that were not calibrated; `ranking` also reads this table beside a machine's own tables.  The link
# between nodes is a guess for 10 Gbit Ethernet.
BUILT_IN = Calibration(Link(5e-6, 7.5e9), Link(3e-5, 1.2e9), 2e10, (
    CalibrationTable(2, 1, {"all_reduce": ((0, ("recursive_doubling",)),
                                           (128 << 10, ("blocked_ring", "recursive_doubling")),
                                           (2 << 20, ("blocked_ring", "ring")))}),))


def from_json(text: str) -> Calibration:
    """The inverse of `as_json`.  Raises ValueError, saying what is wrong, for any other text."""
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise ValueError(f"it is of format {found['format']!r}, not {FORMAT}")
        tables = tuple(CalibrationTable(_number(t.pop("ranks"), 1), _number(t.pop("nodes"), 1),
                                        {operation: _rows(rows) for operation, rows in t.items()})
                       for t in found["tables"])
        return Calibration(_link(found["within"]), _link(found["between"]),
                           _number(found["combining"]), tables)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error})") from None
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"it is no calibration ({type(error).__name__}: {error})") from None


def _number(value: Any, least: float = 0.0) -> Any:
    if isinstance(value, bool) or not value >= least:
        raise ValueError(f"{value!r} stands where a number of at least {least:g} should")
    return value


def _link(values: list) -> Link:
    latency, bandwidth = map(_number, values)
    return Link(latency, bandwidth)


def _rows(rows: list) -> Rows:
    found = tuple((_number(start), tuple(map(str, names))) for start, names in rows)
    if not found or found[0][0] != 0 or sorted(found) != list(found):
        raise ValueError("a table's sizes do not rise from 0")
    return found


def file_of(MPI: Any) -> Path:
    """The path of the calibration of this host and this MPI library."""
    library = MPI.Get_library_version().split("\n")[0].strip("\0 ")
    name = re.sub(r"[^\w.]+", "-", f"{platform.node()} {library}").strip("-").lower()
    return cache_folder() / f"calibration-{name}.json"


def read(path: Path) -> tuple[Calibration | None, str]:
    """(the calibration in the file or None, a line about what is wrong with it or "")."""
    try:
        return from_json(path.read_text(encoding="utf-8")), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, (f"{path} is ignored: {error}; {minipar_command('calibrate', 4)} "
                      "writes it anew")


def write(path: Path, calibration: Calibration) -> None:
    """Write the file atomically."""
    replace_file(path, lambda file: file.write(calibration.as_json().encode()))


def read_on_all(mpi_comm: Any, MPI: Any) -> Calibration:
    """Collective.  The calibration in rank 0's file, on all ranks; BUILT_IN without a sound one."""
    found = None
    if mpi_comm.Get_rank() == 0:
        found, problem = read(file_of(MPI))
        if problem:
            print(f"minipar: {problem}", file=sys.stderr, flush=True)
    text = mpi_comm.bcast(found and found.as_json())
    return from_json(text) if text else BUILT_IN
