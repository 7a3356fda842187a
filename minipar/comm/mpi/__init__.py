"""Real ranks, through mpi4py: loaded only where there are some.

    world.py                    all ranks of mpirun, or those of a communicator of mpi4py
    communicator.py, request.py messages, non-blocking collectives
    process.py                  what the communicators of a process share, what it waits for
    library.py                  loads MPI, after checking that launcher and library fit
    watchdog.py, guardian.py    report ranks that are stuck, and ranks that died
    check/                      MINIPAR_CHECK=1: report calls of ranks that do not fit together
    builtin_collectives.py      algorithm="mpi": the library's own collectives
    shared_all_reduce.py        algorithm="shared": an all-reduce without messages on a node
    shared_memory.py            the memory that it uses

Import `world.from_mpi`, or use `launch`.
"""
