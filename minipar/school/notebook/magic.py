"""`%%ranks`: run a cell on simulated ranks.

    %%ranks 4               four ranks, links of 5 µs and 10 GB/s
    %%ranks 4 --trace       … and a picture of when each rank computes, sends and waits
    %%ranks cluster         the notebook's `cluster = mp.Cluster(8, latency=…)`

After the cell the notebook's `ranks` is a list: `ranks[2]["loss"]` is what rank 2 bound to loss.
A communicator lasts as long as its cell.  So make what uses one (a mesh, a strategy) in the cell
that needs it.  If a rank fails, or if ranks hang, the cell ends with one report: which rank, at
which of the user's lines, and why.
"""

import shlex
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.display import Image, display

from ...comm import Cluster, CollectiveMismatch, Communicator, Deadlock
from ...launcher import simulate
from ...units import time_unit
from ...viz import TracedRun, draw_space_time, waits_of
from .cell import Cell, RankNames, current_rank, numbered_lines

HERE = str(Path(__file__).parents[2])           # minipar: its frames are not the user's
USAGE = "%%ranks N, %%ranks N --trace, or %%ranks CLUSTER, the name of an mp.Cluster"


class RanksFailed(Exception):
    """A cell of `%%ranks` failed; its text is the whole report, and IPython shows no more."""

    def _render_traceback_(self) -> list[str]:
        return str(self).split("\n")


@magics_class
class RanksMagic(Magics):
    """The cell magic `%%ranks`, with the names of all ranks."""

    def __init__(self, shell: Any):
        super().__init__(shell)
        self.ranks: list[RankNames] = []

    @cell_magic("ranks")
    def run(self, line: str, text: str) -> None:
        """Run a cell on simulated ranks; all have `comm`, `rank` and `size`.

        %%ranks N [--trace], or %%ranks CLUSTER with the name of an mp.Cluster.  --trace draws who
        computes, sends and waits.  Afterwards `ranks[i]["name"]` is what rank i has bound.
        """
        cluster, draws = cluster_of(line, self.shell.user_ns)
        name = f"<cell {len(self.shell.user_ns['In']) - 1}>"          # as the notebook's In[…]
        try:
            # the magic's own line is line 1, as in the notebook
            cell = Cell("\n" + self.shell.transform_cell(text), name)
        except SyntaxError as error:
            raise RanksFailed(report_of(error, name)) from None
        self.ranks += [RankNames() for _ in range(cluster.num_ranks - len(self.ranks))]

        def main(comm: Communicator) -> None:
            current_rank.set(comm.rank)
            names = self.ranks[comm.rank]
            names.begin(self.shell.user_ns, comm)
            value = cell.run(names.names)
            if value is not None:
                show(value)

        failure = ""
        try:
            with numbered_lines():
                _, took = simulate(main, cluster)
        except (Exception, SystemExit) as error:
            failure = with_cells(report_of(error, name), self.shell)
        finally:
            bound = [names.end() for names in self.ranks]
            self.shell.user_ns["ranks"] = bound
        if draws:
            draw(cluster, failure)
        if failure:
            raise RanksFailed(failure)
        unit, per_second = time_unit(took)
        print(f"{cluster.num_ranks} simulated ranks, {took * per_second:.3g} {unit} of virtual "
              "time")


def cluster_of(line: str, notebook: dict[str, Any]) -> tuple[Cluster, bool]:
    """The cluster that the words after `%%ranks` ask for, and whether to draw its trace.

    Raises RanksFailed for words that are not understood.
    """
    words = shlex.split(line)
    draws = "--trace" in words
    rest = [word for word in words if word != "--trace"] or ["4"]
    named = notebook.get(rest[0])
    if len(rest) == 1 and rest[0].isdigit() and int(rest[0]):
        return Cluster(int(rest[0]), trace=draws), draws
    if len(rest) > 1 or not isinstance(named, Cluster):
        raise RanksFailed(f"%%ranks {line}: {rest[-1]!r} is neither a number of ranks nor an "
                          f"mp.Cluster of this notebook: {USAGE}")
    if draws and named.ranks[0].trace is None:
        raise RanksFailed(f"%%ranks {line}: this cluster keeps no trace: make it with trace=True")
    return named, draws


def report_of(error: BaseException, cell_name: str) -> str:
    """The text of the report on an error that ended a run of ranks."""
    if isinstance(error, Deadlock | CollectiveMismatch):
        return str(error)
    told = traceback.TracebackException.from_exception(error)
    lines = [*told.format_exception_only(),         # with its note: on which rank
             *traceback.format_list(users_frames(told.stack, cell_name))]
    return "".join(lines).rstrip()


def users_frames(stack: traceback.StackSummary, cell_name: str) -> list[traceback.FrameSummary]:
    """The frames from the cell's first one on, without minipar's own."""
    files = [frame.filename for frame in stack]
    begin = files.index(cell_name) if cell_name in files else len(files)
    return [frame for frame in stack[begin:] if not frame.filename.startswith(HERE)]


def with_cells(report: str, shell: Any) -> str:
    """The report with <cell 3> in place of the file in which Jupyter keeps the text of In[3]."""
    for file, count in getattr(shell.compile, "_filename_map", {}).items():
        report = report.replace(file, f"<cell {count}>")
    return report


def show(value: Any) -> None:
    """Show the value of a cell's last expression on a rank: a picture itself, else its text."""
    if any(hasattr(value, f"_repr_{kind}_") for kind in ("png", "svg", "html")):
        display(value)
    else:
        print(f"Out: {value!r}")


def draw(cluster: Cluster, failure: str) -> None:
    """Show a picture of the last run: who computes, sends and waits, perhaps for ever."""
    waits = waits_of(failure, [rank.clock for rank in cluster.ranks])
    title = "The ranks hang" if waits else "One run of the cell"
    with TemporaryDirectory() as folder:
        path = draw_space_time(Path(folder) / "ranks.png", TracedRun(
            title, cluster.trace, waits, cluster.num_ranks))
        display(Image(path.read_bytes(), format="png"))
