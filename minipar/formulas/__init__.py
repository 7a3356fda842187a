"""Cost formulas on paper: messages, memory and time, independent of the code they predict.

    data_parallel       bytes that each data-parallel strategy sends and keeps
    context_parallel    messages and FLOPs of ring attention and Ulysses
    pipelines           seconds and microbatches in flight of each schedule
    activations         bytes that a transformer layer keeps for backward, under tp
    rematerialization   messages that recomputation repeats beside each strategy
    experts             parameters, FLOPs, messages and activations of a layer with experts

Tests compare them with measured bytes and virtual seconds.
"""
