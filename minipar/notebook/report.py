"""One report for a cell that failed: which rank, at which of the user's lines, and why."""

import traceback
from pathlib import Path

from ..comm import CollectiveMismatch, Deadlock

HERE = str(Path(__file__).parents[1])           # minipar: its frames are not the user's


class RanksFailed(Exception):
    """A cell of `%%ranks` failed; its text is the whole report, and IPython shows no more."""

    def _render_traceback_(self) -> list[str]:
        return str(self).split("\n")


def report_of(error: BaseException, cell_name: str) -> str:
    """The text of the report on an error that ended a run of ranks."""
    if isinstance(error, Deadlock | CollectiveMismatch):
        return str(error)
    told = traceback.TracebackException.from_exception(error)
    lines = [*told.format_exception_only(),         # with its note: on which rank
             *traceback.format_list(users_frames(told.stack, cell_name))]
    return "".join(lines).rstrip()


def users_frames(stack: traceback.StackSummary, cell_name: str) -> list[traceback.FrameSummary]:
    """The frames from the cell's first one on, without those of minipar."""
    files = [frame.filename for frame in stack]
    begin = files.index(cell_name) if cell_name in files else len(files)
    return [frame for frame in stack[begin:] if not frame.filename.startswith(HERE)]
