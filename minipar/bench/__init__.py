"""What `minipar bench` measures, against PyTorch and hand-written NumPy.

Each measurement runs in a fresh process with one thread per rank; what is compared runs there in
turn, interleaved, and medians are compared.  PyTorch's rows appear where torch can be imported.
"""
