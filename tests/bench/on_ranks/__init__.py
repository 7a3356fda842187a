"""Measurements on real MPI ranks of one machine, nearly always two.

    collectives                         against the MPI library's own
    data_parallel, data_parallel_pytorch    speed-up over one rank; DDP and FSDP beside PyTorch's
    deep_mlp                            small layers, against plain NumPy and mpi4py
    pipeline, bubbles                   1F1B against PyTorch's; the bubble beside its formula
    tensor_parallel                     the share of a step that its messages take

Each is a program that `mpirun` starts.
"""
