"""Quantized messages: collectives that send 2 to 8 bits a number instead of 32.

    block_codec.py             a message: integer codes, and a float32 scale for every 256 of them
    error_feedback.py          the rounding error of a message is added to the next one
    quantized_collectives.py   QuantizedWire: all-reduce, reduce-scatter and all-gather of codes

`make_strategy("ddp", model, comm, wire=QuantizedWire())` sends gradients this way.  Wires that send
fewer numbers, or one bit of each, are in `gradient_compression/`.
"""
