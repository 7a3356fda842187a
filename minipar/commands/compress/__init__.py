"""The commands that make a trained model smaller: quantize, prune, distill; and study.

The first three call `minipar.compress` and `train/recipes`.  The study runs them and `minipar
train`, and compares the checkpoints that they write.
"""
