"""The commands that make a trained model smaller: quantize, prune, distill, study.

The first three call `minipar.compress` and `train/recipes`.  `study` runs these three and `minipar
train`, and compares the checkpoints that they write.
"""
