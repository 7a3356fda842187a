"""Pruning: the weights that matter least become 0, or are removed."""
