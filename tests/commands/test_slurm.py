"""Ranks that Slurm's srun starts: known as such, and refused where they cannot find each other."""

import os
import subprocess
import sys

import pytest

from minipar.comm.mpi import library as mpi_library
from minipar.comm.mpi.library import mismatch
from minipar.commands.doctor import report as doctor
from minipar.environment import Launched, find_mpirun, launched, mpirun_environment

# What Slurm 22.05 tells its processes, as far as it matters here.
ALLOCATION = {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4",
              "SLURM_TASKS_PER_NODE": "4"}
BATCH = {**ALLOCATION, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
STEP = {**ALLOCATION, "SLURM_PROCID": "2", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "1,3"}
PMI2 = {"PMI_SIZE": "4", "PMI_RANK": "2", "PMI_JOBID": "2.0"}
PMIX = {"PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.3.0"}




@pytest.fixture
def variables(monkeypatch):
    """A function that sets these, in an environment without a launcher's."""
    for name in {*os.environ} - {*mpirun_environment()}:
        monkeypatch.delenv(name)

    def replace(given: dict[str, str]) -> None:
        for name, value in given.items():
            monkeypatch.setenv(name, value)
    return replace


@pytest.mark.parametrize(("given", "expected"), [
    (ALLOCATION, None),                                     # salloc
    (BATCH, None),                                          # sbatch: the script itself is no step
    ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, None),
    ({name: value for name, value in STEP.items() if name != "SLURM_PROCID"}, None),
    (STEP, Launched("srun", 4, 2, 3)),                      # --mpi=none
    ({**STEP, **PMIX}, Launched("srun", 4, 2, 3)),
    ({**STEP, **PMI2}, Launched("srun", 4, 2, 3)),
    ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, Launched("srun", 4, 2, 2)),
    # mpirun inside an allocation: hydra has started its own processes by srun, one a node
    ({**STEP, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", **PMI2, "MPI_LOCALNRANKS": "2"},
     Launched("mpich", 4, 2, 2)),
    ({**STEP, "SLURM_STEP_NUM_TASKS": "2", "OMPI_COMM_WORLD_SIZE": "8",
      "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
     Launched("openmpi", 8, 5, 4))])
def test_who_started_this_process(variables, given, expected):
    variables(given)
    assert launched() == expected
    assert str(launched()) in ("None", "srun", "mpich's mpirun", "openmpi's mpirun")


def test_a_rank_of_srun_can_start_another_world(variables):
    variables({**STEP, **PMI2})
    inherited = mpirun_environment()
    assert not {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "PMI_RANK"} & {*inherited}
    assert inherited["SLURM_JOB_ID"] == "5"


PROGRAM = """
from minipar.launcher import launch
launch(lambda comm: print("rank", comm.rank, "of", comm.size))
"""


@pytest.mark.skipif(find_mpirun() is None, reason="there is no MPI: pip install '.[mpi]'")
@pytest.mark.skipif(mpi_library.library_vendor() == "openmpi",
                    reason="Open MPI ends such tasks in MPI_Init, with advice of its own")
@pytest.mark.parametrize("rank", [0, 3])
def test_tasks_that_do_not_find_each_other_are_refused(rank):
    """As `srun -n 4 --mpi=none`: no four runs of one rank, and one of them says what to do."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], text=True, capture_output=True, timeout=60,
        env={**mpirun_environment(), **STEP, "SLURM_PROCID": str(rank)})
    assert done.returncode == 2 and done.stdout == "", done
    if rank:
        assert done.stderr == ""
    else:
        assert done.stderr.startswith("minipar: srun started 4 tasks, but the MPI library sees 1: ")
        assert "srun --mpi=pmi2" in done.stderr and done.stderr.count("\n") == 1


def test_the_mpich_wheel_and_pmix(variables, monkeypatch):
    """It would end in MPI_Init, with an error about MPIR_CVAR_PMI_VERSION."""
    variables({**STEP, **PMIX})
    monkeypatch.setattr(mpi_library, "library_vendor", lambda: "mpich")
    for wheel in (True, False):         # a library of the site may have been built with PMIx
        monkeypatch.setattr(mpi_library, "has_wheel", lambda package, wheel=wheel: wheel)
        assert (mismatch() is not None) == wheel
        assert not wheel or "4 tasks with PMIx, which the mpich wheel does not speak" in mismatch()
    monkeypatch.setattr(mpi_library, "library_vendor", lambda: "openmpi")
    assert mismatch() is None
    variables(PMI2)
    assert mismatch() is None


def test_the_doctor_under_srun(variables, monkeypatch):
    variables(STEP)
    monkeypatch.setattr(doctor, "mismatch", lambda: None)
    monkeypatch.setattr(doctor, "_version", lambda p: "4.1" if p == "mpi4py" else "not installed")
    said = mpi_library.refused_by_srun(launched(), ", but the MPI library sees 1")
    assert doctor.diagnose(said, None, "not found") == [said]
    assert doctor.diagnose("MPICH Version: 5.0.2", None, "not found") == []     # needs no mpirun
