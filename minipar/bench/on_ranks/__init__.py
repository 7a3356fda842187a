"""Measurements on real MPI ranks of one machine, nearly always two."""
