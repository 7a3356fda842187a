"""The doctor says that all fits together only after two real ranks have worked together."""

import sys

import pytest

from minipar import environment
from minipar.comm import Communicator
from minipar.comm.subgroup import Subgroup
from minipar.commands.doctor import ranks as doctor_ranks
from minipar.commands.doctor import report as doctor
from minipar.commands.doctor.ranks import try_two_ranks, work_together
from minipar.commands.main import main
from minipar.environment import find_mpirun
from minipar.testing import worlds


@pytest.fixture
def alone(monkeypatch):
    """As if mpi4py were installed, started without a launcher."""
    monkeypatch.setattr(doctor, "launched", lambda: None)
    monkeypatch.setattr(doctor, "mismatch", lambda: None)
    monkeypatch.setattr(doctor, "_version", lambda p: "4.1" if p == "mpi4py" else "not installed")


@worlds(mpi=(2, 3, 4))
def test_real_ranks_work_together(world):
    world.run(work_together)


class Wrong(Subgroup):
    """A communicator whose split leaves the ranks in their order."""

    def __init__(self, comm: Communicator):
        super().__init__(comm, range(comm.size))

    def split(self, color, key=None):
        return self.comm.split(color)


@worlds(2)
def test_a_wrong_split_is_seen(world):
    def body(comm):
        with pytest.raises(RuntimeError, match="another order than asked"):
            work_together(Wrong(comm))
    world.run(body)


def fake_mpirun(folder, text: str) -> str:
    program = folder / "mpirun"
    program.write_text(f"#!{sys.executable}\n{text}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun: pip install '.[mpi]'")
def test_two_ranks_are_started():
    assert try_two_ranks(find_mpirun()) == []


def test_what_two_ranks_die_of_is_told(tmp_path):
    (problem,) = try_two_ranks(fake_mpirun(tmp_path, "print('= BAD TERMINATION'); print('EXIT "
                                                     "STRING: Bus error (signal 7)'); exit(7)"))
    assert "fail (EXIT STRING: Bus error (signal 7))" in problem
    assert f"{tmp_path}/mpirun -n 2 {sys.executable} -m {doctor_ranks.MODULE}" in problem


def test_ranks_that_do_not_end_are_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_ranks, "LIMIT", 1)
    (problem,) = try_two_ranks(fake_mpirun(tmp_path, "import time; time.sleep(100)"))
    assert "do not end within 1 s" in problem


def test_a_launcher_that_does_not_say_so_is_seen(tmp_path):
    """As where the library is of another MPI: each process takes itself for the only one."""
    (problem,) = try_two_ranks(fake_mpirun(
        tmp_path, "import os, sys; os.execv(sys.argv[3], sys.argv[3:])"))
    assert "was not started by an mpirun that is known" in problem


@pytest.mark.parametrize("fits", [True, False])
def test_the_doctor_believes_what_it_has_seen(alone, monkeypatch, capsys, fits):
    monkeypatch.setattr(doctor, "diagnose", lambda *facts: [])
    monkeypatch.setattr(doctor, "try_two_ranks", lambda mpirun: [] if fits else ["they fail"])
    assert main(["doctor"]) == (0 if fits else 1)
    printed = capsys.readouterr().out
    assert ("all fits together" in printed) == fits and ("problem: they fail" in printed) != fits


def test_shared_memory(alone, monkeypatch, tmp_path):
    fine = ("MPICH", "mpirun", "HYDRA")
    assert doctor.diagnose(*fine, None) == doctor.diagnose(*fine, 64 << 20) == []
    (problem,) = doctor.diagnose(*fine, 16 << 20)
    assert "/dev/shm has 16 MiB free" in problem and "--shm-size=1g" in problem
    (problem,) = doctor.diagnose("does not start: Shared memory error", "mpirun", "HYDRA", 0)
    assert "/dev/shm is full, or cannot be written to" in problem     # not: get another MPI
    monkeypatch.setattr(environment, "SHARED_MEMORY", str(tmp_path))
    assert environment.free_shared_memory() > 0
    monkeypatch.setattr(environment.os, "access", lambda path, mode: False)
    assert environment.free_shared_memory() == 0
    monkeypatch.setattr(environment, "SHARED_MEMORY", str(tmp_path / "none"))
    assert environment.free_shared_memory() is None


def test_debians_mpich(alone, monkeypatch):
    """It calls itself libmpich.so.12, and mpi4py's wheel asks for libmpi.so.12."""
    said = "does not start: libmpi.so.12: cannot open shared object file"
    for found, mend in [("libmpich.so.12", "MPICC=/usr/bin/mpicc.mpich pip install "
                                           "--force-reinstall --no-cache-dir --no-binary mpi4py"),
                        (None, "or point MPI4PY_LIBMPI to your libmpi.so")]:
        monkeypatch.setattr(doctor, "find_library", lambda name, found=found: found)
        monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
        (problem,) = doctor.diagnose(said, "mpirun", "HYDRA", None)
        assert mend in problem and problem.count("pip install mpich") == 1
