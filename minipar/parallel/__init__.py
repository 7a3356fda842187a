"""Ways to spread a model over ranks.  Each is a place to insert a conjugate collective.

    conjugate        collectives as differentiable operations; `check_types` checks a graph
    strategy         the interface that every training strategy implements
    registry         every data-parallel strategy by name, and make_strategy
    data/            data parallelism: as a graph, DDP, DataParallel, a parameter server
    zero/            ZeRO-1, -2, -3 and FSDP: states, gradients and parameters are sharded
    tensor/          tensor and sequence parallelism: the matrices of a layer are split
    context/         context parallelism: the tokens of a sequence are spread; ring attention
    expert/          expert parallelism: tokens travel to the ranks of their experts
    pipeline/        stages of layers on different ranks, and their schedules
    hybrid/          several axes of a mesh at once
    replicas         ranks that hold the same parameters: they start, stay and count alike
    shards           one rank's piece of a slab; `state` gathers the parameters by name
    errors           what several strategies refuse
    wire             how messages are encoded; `low_precision_wire` sends 2 bytes a number
    packed_weights   quantized weights are cut over ranks like any other

To train, call `registry.make_strategy`, or make one of the classes.
"""
