"""The same GPT and MLP in PyTorch: timed by the bench, and the oracle of `make test-peers`.

Needs torch.  Parameters have minipar's names; `nn.Linear` keeps its weight transposed, (out, in).
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ...nn import GPTConfig


class Attention(nn.Module):
    """Causal self-attention: x (b, t, d) → (b, t, d)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        d, self.heads = config.width, config.num_heads
        self.kv_heads = config.num_kv_heads or config.num_heads
        self.size = d // self.heads
        self.c_attn = nn.Linear(d, d + 2 * self.kv_heads * self.size)
        self.c_proj = nn.Linear(d, d)

    def forward(self, x):
        """See the class."""
        b, t, d = x.shape
        sizes = d, self.kv_heads * self.size, self.kv_heads * self.size
        q, k, v = (part.view(b, t, -1, self.size).transpose(1, 2)
                   for part in self.c_attn(x).split(sizes, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                           enable_gqa=self.kv_heads < self.heads)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, d))


class FeedForward(nn.Module):
    """x (b, t, d) → (b, t, d)."""

    def __init__(self, d: int):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        """See the class."""
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """x (b, t, d) → (b, t, d)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        d = config.width
        self.ln_1, self.attn = nn.LayerNorm(d), Attention(config)
        self.ln_2, self.mlp = nn.LayerNorm(d), FeedForward(d)

    def forward(self, x):
        """See the class."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class TorchGPT(nn.Module):
    """ids (b, t) → logits (b, t, V); see `minipar.nn.GPT`."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        self.h = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.ln_f = nn.LayerNorm(config.width)
        self.tied = config.tied
        if not self.tied:
            self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)

    def forward(self, ids):
        """See the class."""
        x = self.wte(ids) + self.wpe.weight[:ids.shape[1]]
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        return x @ self.wte.weight.T if self.tied else self.lm_head(x)

    def loss(self, ids, targets):
        """Mean cross-entropy of targets (b, t); those equal to -1 do not count."""
        return F.cross_entropy(self(ids).flatten(0, 1), targets.flatten())


class TorchMLP(nn.Sequential):
    """x (batch, sizes[0]) → (batch, sizes[-1]); see `minipar.nn.MLP` with ReLU."""

    def __init__(self, sizes: list[int]):
        layers = []
        for i, (num_in, num_out) in enumerate(zip(sizes, sizes[1:])):
            layers += [nn.ReLU()] * bool(i) + [nn.Linear(num_in, num_out)]
        super().__init__(*layers)

    def loss(self, x, labels):
        """Mean cross-entropy of labels (batch,)."""
        return F.cross_entropy(self(x), labels)


def copy_state(state: dict[str, np.ndarray], model: nn.Module) -> nn.Module:
    """Give `model` the values and the dtype of a minipar `state_dict`; return it."""
    transposed = {f"{name}.weight" for name, module in model.named_modules()
                  if isinstance(module, nn.Linear)}
    tensors = {name: torch.tensor(array.T if name in transposed else array)
               for name, array in state.items()}
    model.to(next(iter(tensors.values())).dtype).load_state_dict(tensors)
    return model


def read_state(model: nn.Module, gradients: bool = False) -> dict[str, np.ndarray]:
    """The values (or gradients) of `model` by name, laid out as minipar's."""
    transposed = {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    found = {}
    for name, p in model.named_parameters():
        array = (p.grad if gradients else p.detach()).numpy()
        found[name] = array.T if p in transposed else array
    return found
