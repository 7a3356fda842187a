"""ZeRO and FSDP: optimizer states, gradients and parameters are sharded over the ranks.

    zero3_by_autograd       ZeRO-3, specified: every use of a weight is an all-gather of its shards
    zero1                   optimizer states are sharded
    zero2                   … and gradients: each is freed once it is reduced
    fsdp                    … and parameters, gathered by unit, ahead of their use; ZeRO-3: every
                            weight is a unit of its own

Each class is built on the one before, and overrides what a strategy may (parallel/strategy.py):

                place                     reduce(flat)             finish       parameters_changed
    DDP         flats, in their order     all_reduce               wait         –
    ZeRO-1      pieces of each flat       reduce_scatter           wait         all_gather
    ZeRO-2      no whole gradients        … of one whole at a time wait         all_gather
    FSDP        no whole parameters       … as ZeRO-2              wait, free   free

Along a mesh's axis `replicate` (HSDP) ranks have the same pieces.  DDP's `reduce` sums over these
ranks as well.  From ZeRO-1 on, `finish` sums the reduced pieces over them.
`cost/data_parallel.py` predicts what each of them sends and keeps, except zero3_by_autograd.
"""
