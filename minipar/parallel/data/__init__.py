"""Data parallelism: every rank has all parameters and a part of the batch."""
