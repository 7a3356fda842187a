"""minipar: distributed training from scratch, in NumPy/CuPy and MPI.  Start at docs/spine.txt."""

__version__ = "0.1.0"
