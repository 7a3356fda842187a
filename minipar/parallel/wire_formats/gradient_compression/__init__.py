"""Sums of gradients for slow networks: few of their numbers, or few bits of each.

    tensor_wire.py    base: a bucket's tensors by name, and what a method remembers of them
    powersgd.py       PowerSGD: a product of two thin matrices
    top_k.py          TopK, DGC: the largest numbers, with momentum before the sum
    sparse_sum.py     … how these are summed
    signs.py          Signs: one bit a number, with error feedback
    onebit_sgd.py     OneBitSGD: one bit a number, two means a column
    onebit_adam.py    OneBitAdam: signs of Adam's momentum
    sign_vote.py      SignVote: each number goes where most ranks want it to go
    terngrad.py       TernGrad: -1, 0 or 1 at random, right on average
    threshold.py      Threshold: ± τ where more than τ waits

`make_strategy("ddp", model, comm, wire=PowerSGD())` sends gradients this way.  To add a method,
write a subclass of TensorWire, and enter it in `WIRES` (../registry.py).
docs/pages/slow_networks.md compares the methods.
"""
