"""Ways to spread a model over ranks.  Most are places to insert a conjugate collective.

    conjugate        collectives as operations, in conjugate pairs
    check_types      are the gradients of a program right? `check_types` checks its graph
    strategy         the base of every strategy: one path for any mesh
    microbatch       what a rank gets of a batch; `strategy` hands it on
    registry         every strategy by name, and make_strategy
    flats            parameters that are reduced or gathered in one message, and a rank's pieces
    cut_layers       what a mesh changes inside a model, over tp, ep and cp
    data/            data parallelism: as a graph, DDP, DataParallel, local SGD
    zero/            ZeRO-1, -2, -3 and FSDP: states, gradients and parameters are sharded
    tensor/          tensor and sequence parallelism: the matrices of a layer are split
    context/         context parallelism: the tokens of a sequence are spread; ring attention
    expert/          expert parallelism: tokens travel to the ranks of their experts
    pipeline/        stages of layers on different ranks, and their schedules
    compare_ranks    do all ranks hold the same numbers, and use the same parameters?
    errors           what strategies, wires and layers refuse, in one line each
    wire_formats/    how messages are encoded: as they are, in few bits, or few numbers
    cost/            bytes, memory and seconds of each strategy, by formulas on paper

To train, call `registry.make_strategy`, or make one of the classes.
"""
