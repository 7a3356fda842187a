"""Communication between real MPI processes, through mpi4py."""
