"""The repr of models, modules and tensors."""

from minipar.nn import GPT, MLP, GPTConfig, Module


def test_a_model_shows_its_tree_with_shapes():
    """As in PyTorch, except that what stands for a layer are the shapes of its parameters."""
    model = GPT(GPTConfig(65, 16, num_layers=2, num_heads=2, width=8, dropout=0.1, tied=False))
    expected = """\
GPT(
  (wte): Embedding(weight (65, 8))
  (wpe): Embedding(weight (16, 8))
  (drop): Dropout(rate=0.1)
  (h): ModuleList(
    (0-1): 2 x Block(
      (ln_1): LayerNorm(weight (8,), bias (8,), epsilon=1e-05)
      (attn): Attention(
        num_heads=2, num_kv_heads=2
        (c_attn): Linear(weight (8, 24), bias (24,))
        (c_proj): Linear(weight (8, 8), bias (8,))
        (attn_dropout): Dropout(rate=0.1)
        (resid_dropout): Dropout(rate=0.1)
      )
      (ln_2): LayerNorm(weight (8,), bias (8,), epsilon=1e-05)
      (mlp): FeedForward(
        (c_fc): Linear(weight (8, 32), bias (32,))
        (c_proj): Linear(weight (32, 8), bias (8,))
        (dropout): Dropout(rate=0.1)
      )
    )
  )
  (ln_f): LayerNorm(weight (8,), bias (8,), epsilon=1e-05)
  (lm_head): Linear(weight (8, 65))
)"""
    assert repr(model) == expected
    assert repr(model.initialize()) == expected         # names, slabs and numbers change nothing
    assert repr(MLP([4, 3, 3, 2], activation="tanh")) == """\
MLP(
  (0): Linear(weight (4, 3), bias (3,))
  (1): Activation(kind='tanh')
  (2): Linear(weight (3, 3), bias (3,))
  (3): Activation(kind='tanh')
  (4): Linear(weight (3, 2), bias (2,))
)"""
    assert repr(Module()) == "Module()"
    assert repr(MLP([2, 3])[0].weight) == "Tensor(Unmaterialized((2, 3), float32))"
