"""The time of a step: seconds of each effect, and their sum.

    kernels, messages       a product, attention, a collective
    stages                  layers of each pipeline stage
    layer_time, step_time   a layer; a step, by part
    replicas                ranks with the same parameters
    by_table                schedules without a formula
    stalls                  delays that some runs of a layout have, and others do not

No model runs: all are formulas of a cluster, a model and a layout.  Only by_table simulates.
"""
