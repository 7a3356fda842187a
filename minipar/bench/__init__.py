"""What `minipar bench` measures, against PyTorch and hand-written NumPy.

    runner                                          every measurement by name, each in a new process
    timing                                          rows, interleaved steps, medians
    gpt, mlp, memory                                a training step in one process
    data_parallel, tensor_parallel, pipeline        a training step on two MPI ranks
    bubbles, collectives, simulators                a part of it
    baselines/                                      the same in PyTorch and in NumPy by hand

Competitors run in the same process in turn, with one thread per rank; medians are compared.
PyTorch's rows appear if it can be imported.
"""
