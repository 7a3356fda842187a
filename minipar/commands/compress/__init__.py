"""The commands that make a trained model smaller: quantize, prune, distill; study compares all.

What they call is `minipar.compress`, and for the study `minipar.compression_study`.
"""
