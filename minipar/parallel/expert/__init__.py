"""Expert parallelism: the experts of a layer are on different ranks; tokens travel to them.

    exchange              the all-to-alls: rows to their experts, and back
    distribute_experts    the experts of a model are cut over the ranks of ep
    router_bias           loads summed over ranks; the routers' biases, which follow them

The balance loss, the other way to even out loads, is the router's: `minipar/nn/moe/router.py`.

Experts that are cut over tp as well: ../tensor/experts.py.
"""
