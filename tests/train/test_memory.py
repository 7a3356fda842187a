"""`minipar train --offload … --memory-limit …`: a model that does not fit trains."""

import re
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest

from minipar.commands.main import main
from minipar.environment import find_mpirun, mpirun_environment

ON_LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(),
                              reason="only Linux limits what a process has")
SIZES = ("--data", "synthetic", "--layers", "4", "--heads", "4", "--width", "64", "--context", "64",
         "--batch", "64", "--steps", "1")


def train(*words, launcher=()):
    """The exit status, the lines printed, and those about an error."""
    done = subprocess.run([*launcher, sys.executable, "-m", "minipar", "train", *SIZES, *words],
                          capture_output=True, text=True, timeout=60, env=mpirun_environment())
    return done.returncode, done.stdout.splitlines(), done.stderr.strip().splitlines()


def losses(lines):
    """Every loss that was printed."""
    return re.findall(r"loss (\d+\.\d+)", "\n".join(lines))


@cache
def in_use():
    """Megabytes that Python and its libraries have, before there is a model: from the refusal."""
    status, _, (error,) = train("--memory-limit", "1MB")
    assert status == 2
    return float(re.search(r"libraries alone have ([\d.]+) MB", error)[1])


@ON_LINUX
def test_a_run_that_does_not_fit_fails_plainly_and_fits_with_offload(tmp_path, capsys):
    """110 MB of activations into 70 MB: on the process's own limit, not only by the count."""
    limit = f"{in_use() + 70:.0f}MB"
    status, lines, errors = train("--memory-limit", limit)
    assert status == 1 and not losses(lines)
    assert len(errors) == 1 and errors[0].startswith(
        "minipar: out of memory: the process got no more when ")
    assert re.search(r"in use \(activations [\d.]+ MB, .*--offload activations", errors[0])
    main(["train", *SIZES])
    plain = capsys.readouterr().out.splitlines()
    status, lines, errors = train("--memory-limit", limit, "--offload", "activations",
                                  "--set", f"memory.offload_dir={tmp_path}")
    assert (status, errors) == (0, []) and losses(lines) == losses(plain) != []
    assert re.search(r"offloaded activations: a file of \d+\.\d MB a rank", "\n".join(lines))
    assert not list(tmp_path.iterdir())


def test_a_limit_for_each_simulated_rank(capsys, monkeypatch):
    """By the count: this process is not ours alone."""
    monkeypatch.setattr("minipar.train.program.process_limit",
                        lambda config, num_ranks: nullcontext())
    words = ["train", *SIZES, "--layers", "6", "--ranks", "2", "--memory-limit", "40MB"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1
    error = capsys.readouterr().err.strip()
    assert "\n" not in error and "activations were asked for where" in error
    assert "of 40.0 MB are in use" in error
    main([*words, "--steps", "1", "--strategy", "fsdp", "--offload",
          "activations,optimizer,parameters"])
    assert "fsdp, offload activations,optimizer,parameters" in capsys.readouterr().out


@ON_LINUX
@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun: pip install '.[mpi]'")
def test_on_real_ranks_nobody_waits_for_one_that_has_no_memory():
    launcher = [find_mpirun(), "-n", "2"]
    _, _, errors = train("--memory-limit", f"{in_use() + 5:.0f}MB", launcher=launcher)
    with_mpi = float(re.search(r"alone have ([\d.]+) MB", errors[0])[1])      # each MPI has its own
    status, lines, errors = train("--memory-limit", f"{with_mpi + 20:.0f}MB", "--batch", "128",
                                  launcher=launcher)
    assert status and not losses(lines)
    assert "out of memory" in "\n".join(errors) and "Traceback" not in "\n".join(errors)


@ON_LINUX
@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun: pip install '.[mpi]'")
def test_mpi_has_its_memory_before_there_is_a_limit():
    """Python alone fits into this, MPI beside it does not."""
    launcher = [find_mpirun(), "-n", "2"]
    status, _, errors = train("--memory-limit", f"{in_use() + 5:.0f}MB", launcher=launcher)
    assert status == 2 and len(errors) == 1
    assert "Python and its libraries alone have" in errors[0]


@pytest.mark.parametrize("words, message", [
    (["--offload", "weights"], "--offload takes activations, optimizer, parameters, separated by "
                               "commas, not 'weights'"),
    (["--offload", "parameters"], "--offload parameters moves the shards of fsdp, unit by unit: "
                                  "add --strategy fsdp (it is ddp), or leave parameters out"),
    (["--set", "memory.offload_dir=."], "--set memory.offload_dir is for --offload: add --offload "
                                        "activations, or leave it out"),
    (["--offload", "optimizer", "--set", f"memory.offload_dir={__file__}/below"],
     f"--offload's folder {__file__}/below cannot be written to (Not a directory): give a folder "
     "that can, --set memory.offload_dir=DIR"),         # not even by root
    (["--memory-limit", "many"], "--memory-limit takes a size such as 512MB or 1.5GB, not 'many'"),
    (["--memory-limit", "0GB"], "--memory-limit takes a size such as 512MB or 1.5GB, not '0GB'"),
    (["--memory-limit", "9" * 20 + "GB"],
     f"--memory-limit takes a size such as 512MB or 1.5GB, not '{'9' * 20}GB'"),
])
def test_mistakes_are_found_before_the_ranks_start(words, message, capsys):
    assert main(["train", *words]) == 2
    assert capsys.readouterr().err == f"minipar: {message}\n"


def test_pictures_and_checkpoints_of_an_offloaded_run(pictures, tmp_path, capsys):
    """Resumed with everything in a file, or with nothing: the same."""
    words = ["train", "--data", "synthetic", "--layers", "2", "--width", "32", "--batch", "16",
             "--strategy", "fsdp"]
    everything = ["--offload", "activations,optimizer,parameters"]
    main([*words, "--steps", "3", *everything, "--out", str(tmp_path / "a")])
    assert {"memory.png", "timeline.png"} < {path.name for path in (tmp_path / "a").iterdir()}
    ends = []
    for more in ([], everything):
        capsys.readouterr()
        main([*words, "--steps", "4", "--resume", str(tmp_path / "a"), "--out",
              str(tmp_path / "b"), *more])
        ends.append(losses(capsys.readouterr().out.splitlines()))
    assert ends[0] == ends[1] != []


def test_arrays_too_small_to_move_are_said_to_stay(capsys):
    main(["train", "--data", "digits", "--steps", "1", "--offload", "activations"])
    assert "offloaded activations: nothing, for arrays of less than 65,536 bytes stay" in " ".join(
        capsys.readouterr().out.split())
