"""Execution: a rank runs its local program.

    local_call.py      what a rank calls for an operation on its pieces
    shifted_slice.py   a slice of a dimension that stays cut
    padding.py         pieces of equal length, where a dimension does not divide
    collectives.py     the collectives, each with the collective of its gradient
    execute.py         the program, bound to a rank's place in the mesh

Backward needs no code here: each Function that runs has its own.
"""
