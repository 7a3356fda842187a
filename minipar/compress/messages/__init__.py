"""Short messages: few bits of each number, or few numbers, instead of 32 bits of all.

    block_codec.py             a message: integer codes, and a float32 scale for every 256 of them
    error_feedback.py          the rounding error of a message is added to the next one
    quantized_collectives.py   QuantizedWire: all-reduce, reduce-scatter and all-gather of codes

For gradients of whole tensors, on slow networks (docs/pages/slow_networks.md):

    tensor_wire.py             base: a flat's tensors by name, and what a method remembers of them
    powersgd.py                PowerSGD: a product of two thin matrices
    sparse_sum.py              sums of a few numbers of each rank, with their indices
    top_k.py                   TopK, DGC: the largest numbers, with momentum before the sum
    signs.py                   Signs: one bit a number, with error feedback
    onebit_adam.py             OneBitAdam: signs of Adam's momentum
    sign_vote.py               SignVote: each number goes where most ranks want it to go
    terngrad.py                TernGrad: -1, 0 or 1 at random, right on average
    threshold.py               Threshold: ± τ where more than τ waits

`make_strategy("ddp", model, comm, wire=PowerSGD())` sends gradients this way.
"""
