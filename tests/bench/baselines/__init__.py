"""The programs that minipar is measured against: PyTorch, and NumPy written by hand.

    torch_models                        the same GPT and MLP in PyTorch
    numpy_gpt, numpy_attention          one training step of the GPT, without autograd
    numpy_mlp, numpy_decode             an MLP on several ranks; one sequence that grows

None computes with minipar's operations.  They import from it a model's sizes, a batch's type, and
`l2_blocks`, which cuts arrays into blocks that fit the L2 cache.
"""
