"""The cost of a strategy's step on paper: messages, memory, time (of one collective: comm/cost).

    data_parallel       bytes that each data-parallel strategy sends and keeps
    context_parallel    messages and FLOPs of ring attention and Ulysses
    pipelines           seconds and microbatches in flight of each schedule
    activations         bytes that a transformer layer keeps for backward, under tp and cp
    rematerialization   steps of backward that recompute, and the tp messages that they repeat
    experts             parameters, FLOPs, messages and activations of a layer with experts

The formulas are written independently of the code whose costs they predict.  Tests compare them
with measured bytes and virtual seconds.  A step calls many collectives: `comm/cost` says what each
algorithm of a collective costs.
"""
