"""Expert parallelism: the experts of a layer are on different ranks; tokens travel to them.

    exchange    the all-to-alls: rows to their experts, and back
    apply       distribute_experts cuts the experts of a model over the ranks of ep
    balance     loads summed over ranks; the routers' biases

Experts that are cut over tp as well: ../tensor/experts.py.
"""
