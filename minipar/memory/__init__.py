"""Memory of a training step: count it, recompute activations, or offload arrays to the host.

    ledger.py        live and peak bytes on one rank, by kind: parameters, gradients, activations …
    temporaries.py   the same with the arrays that operations hand to each other
    remat/           activation checkpointing: recompute activations in backward
    offload/         copy saved activations to the host and back, overlapped with computation

Optimizer states and shards of parameters move to a file in `backend/mapped_file.py`.  Mixed
precision is in `minipar/precision`; files of a run's state in `minipar/checkpoint`.
"""
