"""The commands that make a trained model smaller: quantize, prune, distill; study compares all.

The first three call `minipar.compress` and `train/recipes`.  The study runs them and `minipar
train`, and measures the checkpoints that they write.
"""
