"""Reports on a test: the reports of all ranks merged into one, and those made here.

    rank 0: passed  ┐
    rank 1: FAILED  ├─▶  failed: "rank 1 of 3 failed: AssertionError", with its traceback
    rank 2: passed  ┘

A test has passed on real ranks if it passed on every rank; a rank that differs is named.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from _pytest._io import TerminalWriter

Reports = Sequence[pytest.TestReport]


class MpiTest(NamedTuple):
    """A test on real ranks: pytest's node id and location, and how many ranks it needs."""

    nodeid: str
    location: tuple[str, int | None, str]
    num_ranks: int


def merge_reports(item: pytest.Item, reports: Mapping[int, Reports]) -> list[pytest.TestReport]:
    """One report for each phase (setup, call, teardown) from the reports of all ranks."""
    merged: list[pytest.TestReport] = []
    has_failed = False
    for phase in ("setup", "call", "teardown"):
        at_phase = {rank: next((r for r in of_rank if r.when == phase), None)
                    for rank, of_rank in reports.items()}
        failed = {rank: r for rank, r in at_phase.items() if r is not None and r.failed}
        if failed:
            merged.append(_failure(item, phase, failed, len(reports)))
            has_failed = True
        elif has_failed and phase == "call":
            continue            # some ranks failed in setup: what others did next says nothing
        elif has_failed or len({_outcome(r) for r in at_phase.values()}) == 1:
            merged += [r for r in list(at_phase.values())[:1] if r is not None]
        else:
            merged.append(_disagreement(item, phase, at_phase))
            has_failed = True
    return merged


def stuck_report(item: pytest.Item, stacks: Mapping[int, str], reports: Mapping[int, Reports],
                 limit: str, seconds: float) -> pytest.TestReport:
    """The report on a test that did not end, with the `stacks` of the ranks still in it."""
    size = len(stacks) + len(reports)
    failed = {rank: r for rank, of_rank in reports.items() for r in of_rank if r.failed}
    passed = [rank for rank in reports if rank not in failed]
    if failed:
        first = f"{names(failed)} of {size} failed; {names(stacks)} still waited {limit} later"
    else:
        first = f"{names(stacks)} of {size} did not finish within {limit}: a deadlock, or too slow"
    parts = [first, "", *_tracebacks(failed)]
    for ranks, stack in _by_text(stacks):
        verb = "waits" if len(ranks) == 1 else "wait"
        parts += [_rule(f"{names(ranks)} still {verb} here"), stack.rstrip()]
    if passed:
        parts.append(_rule(f"{names(passed)} had finished"))
    return failed_report(item, "call", "\n".join(parts), seconds, _sections(failed))


def failed_report(test: pytest.Item | MpiTest, phase: str, text: str, seconds: float = 0.0,
                  sections: Iterable[tuple[str, str]] = ()) -> pytest.TestReport:
    """A report that shows `text`, its first line also in pytest's short summary."""
    return pytest.TestReport(test.nodeid, test.location, {}, "failed", text,
                             phase, sections, seconds)          # type: ignore[arg-type]


def pack(config: pytest.Config, reports: Reports) -> list[dict[str, Any]]:
    """Reports as plain data, for a file."""
    return [config.hook.pytest_report_to_serializable(config=config, report=r) for r in reports]


def unpack(config: pytest.Config, packed: Iterable[dict[str, Any]]) -> list[pytest.TestReport]:
    """The reports that another process has packed."""
    reports = []
    for data in packed:
        for name in ("location", "longrepr"):       # JSON turns tuples into lists
            if isinstance(data[name], list):
                data[name] = tuple(data[name])
        reports.append(config.hook.pytest_report_from_serializable(config=config, data=data))
    return reports


def names(ranks: Iterable[int]) -> str:
    """`rank 2`, or `ranks 0, 2`."""
    ranks = sorted(ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _failure(item: pytest.Item, phase: str, failed: Mapping[int, pytest.TestReport],
             size: int) -> pytest.TestReport:
    first = next(iter(failed.values()))
    text = "\n".join([f"{names(failed)} of {size} failed: {_message(first)}", "",
                      *_tracebacks(failed)])
    seconds = max(report.duration for report in failed.values())
    return failed_report(item, phase, text, seconds, _sections(failed))


def _disagreement(item: pytest.Item, phase: str,
                  at_phase: Mapping[int, pytest.TestReport | None]) -> pytest.TestReport:
    said = [f"{names(ranks)} {text}" for ranks, text in
            _by_text({rank: _outcome(r) for rank, r in at_phase.items()})]
    return failed_report(item, phase, "the ranks disagree: " + "; ".join(said))


def _outcome(report: pytest.TestReport | None) -> str:
    """The outcome on one rank, in words."""
    if report is None:
        return "did not get there"
    if hasattr(report, "wasxfail"):
        return "failed as expected (xfail)" if report.skipped else "passed unexpectedly (xpass)"
    if report.skipped and isinstance(report.longrepr, tuple):
        return f"skipped ({report.longrepr[2].removeprefix('Skipped: ')})"
    return report.outcome


def _message(report: pytest.TestReport) -> str:
    """The message of the exception, one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else report.longreprtext or "failed").splitlines()[0]


def _tracebacks(failed: Mapping[int, pytest.TestReport]) -> list[str]:
    lines = []
    for ranks, text in _by_text({rank: _traceback(r) for rank, r in failed.items()}):
        lines += [_rule(f"{names(ranks)} failed"), text.rstrip(), ""]
    return lines


def _traceback(report: pytest.TestReport) -> str:
    """The text of a traceback; unlike longreprtext, it keeps the first indentation."""
    text = io.StringIO()
    report.toterminal(TerminalWriter(text))
    return text.getvalue().strip("\n")


def _sections(failed: Mapping[int, pytest.TestReport]) -> list[tuple[str, str]]:
    """The output of the failed ranks."""
    return [(f"{title}, rank {rank}", text) for rank, r in failed.items()
            for title, text in r.sections]


def _by_text(texts: Mapping[int, str]) -> list[tuple[list[int], str]]:
    """Ranks grouped by text, so that equal tracebacks are shown once."""
    groups: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        groups.setdefault(text, []).append(rank)
    return [(ranks, text) for text, ranks in groups.items()]


def _rule(title: str) -> str:
    return f" {title} ".center(72, "-")
