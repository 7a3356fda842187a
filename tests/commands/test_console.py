"""The console for people: its width and colours, on a terminal, in a file and under mpirun."""

import os
import re
import subprocess
import sys

import pytest

from minipar.environment import find_mpirun, mpirun_environment, reader_console, width_of

CODE = """
from minipar.environment import reader_console
from minipar.launcher import launch
def main(comm):
    console = reader_console(110, quiet=comm.rank > 0)
    console.print(f"[red]{console.width} wide[/]")
launch(main, 2)
"""


@pytest.mark.parametrize("columns, expected", [("80", 80), ("", 110), ("wide", 110)])
def test_a_file_is_as_wide_as_columns_say(monkeypatch, columns, expected):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    console = reader_console(110)
    assert console.width == expected and not console.is_terminal


def test_colours_can_be_forced_into_a_file(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert reader_console(110).is_terminal


def test_a_terminal_that_is_gone_has_no_width(monkeypatch, tmp_path):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert width_of(str(tmp_path / "missing")) == width_of(None) == 0


def on_a_terminal(words, columns, **variables):
    """What a program prints on a terminal of that width, and the same without colours."""
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    inherited = {name: value for name, value in mpirun_environment().items()
                 if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL,
                          env=inherited | {"TERM": "xterm-256color"} | variables) as program:
        os.close(theirs)
        printed = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:                     # Linux: all others have closed it
                break
            if not piece:
                break
            printed += piece
    os.close(ours)
    assert program.returncode == 0, printed
    return printed.decode(), re.sub(r"\x1b\[[0-9;]*m", "", printed.decode())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no rank sees mpirun's terminal")
@pytest.mark.parametrize("with_mpirun", [False, True])
def test_the_terminal_counts_under_mpirun_as_without(with_mpirun):
    mpirun = find_mpirun()
    if with_mpirun and mpirun is None:
        pytest.skip("no mpirun: pip install '.[mpi]'")
    words = [*([mpirun, "-n", "2"] if with_mpirun else []), sys.executable, "-c", CODE]
    printed, plain = on_a_terminal(words, 97)
    assert plain.split() == ["97", "wide"] and "\x1b[31m" in printed
    printed, plain = on_a_terminal(words, 97, COLUMNS="63", NO_COLOR="1")
    assert plain.split() == ["63", "wide"] and "\x1b[31m" not in printed


@pytest.mark.skipif(find_mpirun() is None, reason="no mpirun: pip install '.[mpi]'")
def test_mpirun_into_a_file_has_no_colours(tmp_path):
    """Its shell may well be on a terminal."""
    with open(tmp_path / "out", "w") as file:
        words = [find_mpirun(), "-n", "2", sys.executable, "-c", CODE]
        subprocess.run(words, stdout=file, env=mpirun_environment() | {"COLUMNS": "81"}, check=True)
    assert (tmp_path / "out").read_text() == "81 wide\n"
