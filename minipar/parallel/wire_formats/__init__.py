"""Wire formats: how the messages of a strategy are encoded, in full or in few bytes.

    DistributedDataParallel(model, comm)                     float32, 4 bytes a number
    DistributedDataParallel(model, comm, wire=PowerSGD())    two thin matrices for each weight

    wire.py                 the base: its methods are the collectives, of numbers as they are
    low_precision.py        bfloat16 or float16: 2 bytes a number
    quantized/              2 to 8 bits a number, with scales and error feedback
    gradient_compression/   few numbers, or few bits of each: sums of whole gradients, of DDP only
    registry.py             WIRES: every wire by name, which `minipar train` can choose

The first three also encode ZeRO's gradients, and the weights that FSDP gathers (`gather_wire`).
"""
