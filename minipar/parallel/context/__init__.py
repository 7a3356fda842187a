"""Context parallelism: the tokens of a long sequence are spread over ranks.

    ring                   keys and values travel, queries stay: ring attention
    all_gather             its specification: all keys are gathered first
    ulysses                an all-to-all turns some of the tokens into some of the heads, and back
    blocks                 one block of queries and keys, forward and backward
    mask                   who sees whom, by positions; which tiles of a block are computed
    token_order            which tokens each rank has: contiguous, zig-zag, striped
    rank_groups            the ranks of cp, and the groups that attention needs
    attention              the differentiable operation
    parallelize_context    a GPT becomes context-parallel

Read ring first.
"""
