"""Measurements of `make bench`, against PyTorch and hand-written NumPy.

    runner                                          every measurement by name, each in a new process
    timing                                          rows, interleaved steps, medians
    gpt, gpt2_small, mlp, small_models, memory      a training step in one process
    gpu                                             the same on a GPU
    serve, simulated_load                           many requests in one engine; in virtual time
    decode                                          tokens, one by one and many together
    simulators                                      the simulated cluster, schedules of pipelines
    on_ranks/                                       training steps and collectives on MPI ranks
    baselines/                                      the same in PyTorch and in NumPy by hand

Competitors run in the same process in turn, with one thread per rank.  Medians are compared, but of
operations of small models the least times.
PyTorch's rows appear if it can be imported.
"""
