"""Tensor parallelism: the matrices of a layer are split over ranks.

    layers           column and row layers in pairs; attention by heads
    vocabulary       the embedding and the loss, cut along the vocabulary
    sequence         sequence parallelism: the tokens between the pairs are split too
    experts          the layers of experts, cut in the same way
    parallelize      a plain GPT or MLP becomes tensor-parallel
    low_precision    activations are sent in 2 bytes a number
    packed_weights   quantized weights are cut over ranks like any other

Read layers first.
"""
