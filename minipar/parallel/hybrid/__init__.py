"""Several axes of a mesh at once: layers over pp and tp, rows over dp, tokens over cp.

    hybrid          the strategy: it puts those of the axes together
    data_axis       what the dp and cp ranks of a stage do: ddp, ZeRO-1 or FSDP

`registry.make_strategy` makes one for a mesh with such axes.
"""
