"""Cells: chunks, blocks of attention, shards, experts, saved tensors.

    rounds, rounds_picture          which chunk is where, in each round
    ring_attention                  which pairs each rank computes
    sharded_pair, sharded_program   what is cut over which ranks
    autograd_graph                  what is saved for backward
    experts                         who computes which tokens

Rows and columns are ranks, chunks, tokens or dimensions.
"""
