"""Pipelines without a flush: stages step while microbatches are on their way, by older weights.

    pipedream               each microbatch is a batch; a stage steps as soon as it can
    two_bw                  2BW: batches of microbatches, two versions
    versions                the weights of a stage after each of some steps
    pipedream_by_versions   both, specified in one process

`docs/pages/late_weights.md` compares them.
"""
