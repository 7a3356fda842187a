"""Memory of a training step: count it, recompute activations, or offload arrays to the host.

    ledger.py        live and peak bytes on one rank, by kind: parameters, gradients, activations …
    temporaries.py   a ledger that also counts the arrays that operations hand to each other
    remat/           activation checkpointing: recompute activations in backward
    offload/         copy saved activations to the host and back, overlapped with computation

`backend/mapped_file.py` keeps optimizer states and shards of parameters in a file.  Mixed precision
is in `minipar/mixed_precision`; files of a run's state are in `minipar/checkpoint_file`.
"""
