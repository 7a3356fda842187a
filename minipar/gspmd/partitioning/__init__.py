"""Partitioning: from the sharding of every value to the program that each rank runs.

    reshard.py      the cheapest collectives between two layouts
    cuts.py         where an operation runs
    program.py      the local program as data
    conversion.py   the collectives that bring a value to an operation
    simplify.py     copies as early as possible, merged with gathers
    overlaps.py     which rows of a slice go from rank to rank
    partition.py    operation by operation, with the collectives between

Gradients need no program of their own: the backward of a `copy` sums them.
"""
