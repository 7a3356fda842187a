"""Pipelines: layers spread over ranks in stages, a batch cut into microbatches, a schedule as data.

    one_f_one_b             1F1B in one short file, to be read first: the specification
    schedule/               which rank does what in which order, without an array
    executor, p2p           what trains by any schedule, and its messages
    cut_points              where to cut a model into stages
    stages                  the stages of a model, and what a rank keeps of it
    late_weights/           PipeDream and 2BW: no flush, but weights in versions
    terapipe, slices        a pipeline of slices of tokens
    pipeline_only           base of PipeDream, 2BW and TeraPipe
    naive                   one microbatch, one rank at work at a time

`docs/pages/pipelines.md` shows how to use them.
"""
