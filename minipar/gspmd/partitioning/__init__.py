"""Partitioning: from the sharding of every value to the program that each rank runs.

    reshard.py      the cheapest collectives between two layouts
    cuts.py         where an operation runs
    program.py      the local program as data
    simplify.py     copies as early as possible, in one with gathers
    overlaps.py     which rows of a slice go from rank to rank
    partition.py    operation by operation, with the collectives between

Its last step is the only one that knows of gradients: a `copy` is where they are summed.
"""
