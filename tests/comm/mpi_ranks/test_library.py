"""Other people's MPIs: what they lack, what they have to be told, whose library it is."""

from pathlib import Path

import numpy as np
import pytest

from minipar.comm.collectives import all_reduce
from minipar.comm.mpi import library as mpi_library
from minipar.comm.mpi.guardian import shared_memory
from minipar.comm.work import start_work
from minipar.environment import mpirun_environment
from minipar.testing import worlds


@worlds(mpi=(2, 3))
def test_a_communicator_without_attributes_has_tags_for_works(world):
    """Open MPI's, but for the world's."""
    def body(comm):
        class Bare(comm.MPI.Intracomm):
            def Get_attr(self, key):
                return None
        part = comm.split(0)
        part.mpi_comm = Bare(part.mpi_comm)
        works = [start_work(all_reduce, part, np.full(5, comm.rank, np.int64)) for _ in range(3)]
        for work in works:
            assert (work.wait() == comm.size * (comm.size - 1) // 2).all()
    world.run(body)


@pytest.mark.parametrize("version", ["OMPI_MCA_rmaps_base_oversubscribe",           # 4
                                     "PRTE_MCA_rmaps_default_mapping_policy"])      # 5
def test_open_mpi_is_told_that_more_ranks_than_cores_are_meant(version):
    assert version in mpirun_environment()
    assert version in (Path(__file__).parents[3] / "Makefile").read_text()


def test_an_mpi4py_from_source_does_not_say_what_it_loads(monkeypatch):
    """Its wheels' way to choose a library finds one that it does not load."""
    pytest.importorskip("mpi4py")
    monkeypatch.setattr(mpi_library.PathFinder, "find_spec", lambda name, path: "one file")
    assert mpi_library.library_vendor() is None


def test_the_guardian_finds_open_mpis_shared_memory(tmp_path, monkeypatch):
    maps = tmp_path / "7" / "maps"
    maps.parent.mkdir()
    maps.write_text("7f00-7f10 rw-s 00000000 00:17 5 /dev/shm/vader_segment.host.0.1.0\n"
                    "7f10-7f20 rw-s 00000000 00:17 6 /dev/shm/sm_segment.host.0.1.0\n"
                    "7f20-7f30 rw-s 00000000 00:17 7 /dev/shm/another_program\n7f30-7f40 r-xp\n")
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self: real(
        tmp_path / self.relative_to("/proc") if self.is_relative_to("/proc") else self))
    assert {path.name for path in shared_memory(7)} == {"vader_segment.host.0.1.0",
                                                       "sm_segment.host.0.1.0"}
    assert shared_memory(8) == set()
