"""From the configuration of a run to its objects; most files also check their own options.

    mesh.py             the mesh, and the number of ranks
    strategy.py         the strategy, on a mesh if there is one
    context.py          context parallelism: how ranks share sequences
    gpt_sizes.py        the sizes and kinds of a GPT
    mlp_sizes.py        the sizes of an MLP, its activation and its dropout
    precision.py        mixed precision, the loss scaler, the format of messages
    rank_memory.py      the ledger, offloading, the limit of memory
    remat.py            the plan of rematerialization
    device.py           CPU or GPU
    corpus.py           the text of --data
    starting_point.py   initial values or a checkpoint, and the masks of a pruned model

`check.py` calls the checks, except that `program.train` calls the check of a remat budget.
`start.start_run` makes the objects.
"""
