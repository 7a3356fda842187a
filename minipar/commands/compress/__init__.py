"""The commands that make a trained model smaller: quantize, prune, distill; study compares all.

What they call is `minipar.compress`; the study runs the others, and measures what they make.
"""
