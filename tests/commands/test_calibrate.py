"""`minipar calibrate` on real ranks: what it writes decides what "auto" takes in the next run."""

import json
import re
import subprocess
import sys

import pytest

from minipar.environment import find_mpirun, minipar_command, mpirun_environment

needs_mpi = pytest.mark.skipif(find_mpirun() is None,
                               reason="there is no mpirun: pip install '.[mpi]'")
PROGRAM = """
import numpy as np
from minipar.comm.collectives import all_reduce
from minipar.launcher import launch

def main(comm):
    names = [comm.choose("all_reduce", n) for n in (64, 1 << 22)]
    assert all_reduce(comm, np.ones(8))[0] == comm.size
    if comm.rank == 0:
        print(*names)

launch(main)
"""


def run(cache, num_ranks, *words):
    launcher = [find_mpirun(), "-n", str(num_ranks)] if num_ranks else []
    return subprocess.run([*launcher, sys.executable, *map(str, words)], text=True, timeout=90,
                          capture_output=True,
                          env={**mpirun_environment(), "MINIPAR_CACHE": str(cache)})


@pytest.mark.slow
@needs_mpi
def test_it_measures_and_the_next_run_goes_by_it(tmp_path):
    picture, cache = tmp_path / "curves.png", tmp_path / "cache"
    done = run(cache, 2, "-m", "minipar", "calibrate", "--rounds", 1, "--largest", 300, "--png",
               picture)
    assert done.returncode == 0, done.stderr
    assert re.search(r"A message within a node: α = \S+ µs, β = \S+ ns/B \(\S+ GB/s\); a measured",
                     done.stdout)
    assert re.search(r"Combining: γ = \S+ ns/B \(\S+ GB/s\) on each rank", done.stdout)
    assert "all_reduce on 2 ranks: predicted | measured" in done.stdout
    assert "crossovers predicted:" in done.stdout and "measured: " in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    (path,) = cache.iterdir()
    found = json.loads(path.read_text())
    (table,) = found["tables"]
    assert (table["ranks"], table["nodes"]) == (2, 1)
    table["all_reduce"] = [[0, ["tree"]], [1000, ["not_there", "rabenseifner"]]]
    path.write_text(json.dumps(found))
    done = run(cache, 3, "-c", PROGRAM)
    assert (done.returncode, done.stdout, done.stderr) == (0, "tree rabenseifner\n", "")
    path.write_text("{")
    done = run(cache, 3, "-c", PROGRAM)
    assert done.returncode == 0 and done.stdout.startswith("recursive_doubling ")
    assert done.stderr.count("\n") == 1 and f"{path} is ignored: it is no JSON" in done.stderr


@needs_mpi
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file" / "cache", 2, "-m", "minipar", "calibrate", "--rounds", 1,
               "--largest", 64)
    assert done.returncode == 1
    assert "minipar: the calibration cannot be kept: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [0, pytest.param(2, marks=needs_mpi)])
def test_a_cluster_file_is_written_and_simulate_takes_it(tmp_path, num_ranks):
    path = tmp_path / "here.toml"
    done = run(tmp_path, num_ranks, "-m", "minipar", "calibrate", "--rounds", 1, "--cluster", path)
    assert done.returncode == 0, done.stderr
    assert f"{path}: " in done.stdout and "predicted" in done.stdout
    done = run(tmp_path, 0, "-m", "minipar", "simulate", "--cluster", f"1x2:{path}", "--model",
               "layers=2,width=64,heads=2,vocab=64", "--sequence", 32, "--batch", 4)
    assert done.returncode == 0 and "A step takes" in done.stdout, done.stderr


@pytest.mark.parametrize(("num_ranks", "words", "message"), [
    (0, ("--cluster", "absent/here.toml"), "expected a file NAME.toml in a folder that exists"),
    (0, (), f"at least two real ranks: {minipar_command('calibrate', 4)}"),
    pytest.param(1, (), "at least two real ranks", marks=[needs_mpi, pytest.mark.slow]),
    pytest.param(2, ("--rounds", "0"), "--rounds must be at least 1",
                 marks=[needs_mpi, pytest.mark.slow]),
    pytest.param(2, ("--png", "a.png", "--largest", "64"), "leaves one: give at least 256 bytes",
                 marks=needs_mpi)])
def test_mistakes_are_one_line(tmp_path, num_ranks, words, message):
    done = run(tmp_path, num_ranks, "-m", "minipar", "calibrate", *words)
    assert done.returncode == 2 and message in done.stderr
    assert done.stderr.count("minipar: ") == 1 and "Traceback" not in done.stderr
