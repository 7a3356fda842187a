"""The programs that minipar is measured against: PyTorch, and NumPy written by hand.

    torch_models                        the same GPT and MLP in PyTorch
    numpy_gpt, numpy_attention          one training step of the GPT, without autograd
    numpy_mlp, numpy_decode             an MLP on several ranks; one sequence that grows

They share no code with minipar.
"""
