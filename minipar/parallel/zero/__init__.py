"""ZeRO and FSDP: optimizer states, gradients and parameters are sharded over the ranks.

    zero3_by_autograd       ZeRO-3, specified: every use of a weight is an all-gather of its shards
    zero1                   optimizer states are sharded
    zero2                   … and gradients: each is freed once it is reduced
    fsdp                    … and parameters, gathered by unit, ahead of their use
    zero3                   FSDP whose every weight is a unit of its own

`formulas/data_parallel.py` predicts what each of them sends and keeps, except the first.
"""
