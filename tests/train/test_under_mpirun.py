"""The training program on real ranks, as a user starts it: one line on a mistake, a whole run."""

import subprocess
import sys

import pytest

from minipar.environment import find_mpirun, mpirun_environment
from tests.train.test_train import SMALL, TO_A_NAN

pytestmark = pytest.mark.skipif(find_mpirun() is None, reason="no mpirun: pip install '.[mpi]'")


def train_under_mpirun(num_ranks, *words):
    return subprocess.run([find_mpirun(), "-n", str(num_ranks), sys.executable, "-m", "minipar",
                           "train", *SMALL, *words], env=mpirun_environment(), capture_output=True,
                          text=True, timeout=120)


def test_a_mistake_is_one_line_and_a_run_is_whole(tmp_path):
    wrong = train_under_mpirun(2, "--mesh", "dp=4")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1
    assert "for 4 ranks, but there are 2" in wrong.stderr
    good = train_under_mpirun(2, "--data", "synthetic", "--steps", "2", "--verify", "2", "--out",
                              str(tmp_path))
    assert good.returncode == 0, good.stderr
    assert "the same: after 2 steps in float64, 2 MPI ranks" in good.stdout
    assert good.stdout.count("final loss") == 1             # rank 0 only


@pytest.mark.slow               # the NaN of FSDP on two ranks is below
@pytest.mark.parametrize("num_ranks, words", [
    (3, "--strategy ddp"), (4, "--strategy fsdp --hybrid-shard 2")])
def test_a_nan_is_one_line(num_ranks, words):
    nan = train_under_mpirun(num_ranks, "--data", "synthetic", *words.split(), *TO_A_NAN)
    assert nan.returncode == 1 and nan.stderr.count("\n") == 1, nan.stderr
    assert "the loss is" in nan.stderr and "at step 1" in nan.stderr


@pytest.mark.slow
def test_sharded_under_mpirun(tmp_path):
    """A sample, a summary and --verify of a model whose weights no rank has; one line on a NaN."""
    words = "--data", "synthetic", "--strategy", "fsdp"
    good = train_under_mpirun(4, *words, "--hybrid-shard", "2", "--steps", "4", "--accumulate", "2",
                              "--sample", "5", "--verify", "2", "--out", str(tmp_path))
    assert good.returncode == 0, good.stderr
    assert "the same: after 2 steps in float64, 4 MPI ranks" in good.stdout
    assert "validation loss" in good.stdout and "a sample" in good.stdout
    nan = train_under_mpirun(2, *words, *TO_A_NAN)
    assert nan.returncode == 1 and nan.stderr.count("\n") == 1, nan.stderr
    assert "the loss is" in nan.stderr and "at step 1" in nan.stderr
