"""The programs that minipar is measured against: PyTorch, and NumPy written by hand."""
