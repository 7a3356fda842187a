"""ZeRO and FSDP: optimizer states, gradients and parameters are sharded over the ranks.

    zero3_by_autograd       ZeRO-3, specified: every use of a weight is an all-gather of its shards
    zero1                   optimizer states are sharded
    zero2                   … and gradients; `reducer` frees each gradient once it is reduced
    zero3                   … and parameters, each weight gathered by itself
    fsdp                    … and parameters, gathered by unit, ahead of their use
    fsdp_unit               the parameters that are unsharded and resharded together
    prefetch                which units are gathered, and when

`formulas/data_parallel.py` predicts what each of them sends and keeps, except the first.
"""
