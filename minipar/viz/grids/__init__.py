"""Cells: chunks, blocks of attention, shards, experts, saved tensors.

    rounds, rounds_picture          the chunks on each rank, round by round
    ring_attention                  the pairs of tokens that each rank computes
    sharded_pair, sharded_program   tensors that are cut over ranks
    autograd_graph                  the arrays that are saved for backward
    experts                         the tokens of each expert

Rows and columns are ranks, chunks, tokens or dimensions.
"""
