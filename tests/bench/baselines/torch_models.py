"""The same GPT and MLP in PyTorch: timed by the bench, and the oracle of `make test-peers`.

Needs torch.  Parameters have minipar's names; `nn.Linear` keeps its weight transposed, (out, in).
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from minipar.nn import GPTConfig


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


class TorchDecoder:
    """The likeliest tokens of a TorchGPT, with a cache of keys and values (L, h, context, n)."""

    def __init__(self, model: TorchGPT, config: GPTConfig):
        self.model, size = model, config.width // config.num_heads
        shape = config.num_layers, config.num_heads, config.context, size
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)

    @torch.inference_mode()
    def generate(self, prompt: list[int], num_tokens: int) -> list[int]:
        """The tokens that follow `prompt`."""
        new, start, tokens = torch.tensor(prompt), 0, []
        for _ in range(num_tokens):
            token = self.step(new, start).argmax()
            tokens.append(int(token))
            new, start = token[None], start + len(new)
        return tokens

    def step(self, ids, start: int):
        """The logits (V,) after tokens `ids` (t,) from position `start` on."""
        model = self.model
        x = model.wte(ids) + model.wpe.weight[start:start + len(ids)]
        for layer, block in enumerate(model.h):
            x = x + block.attn.c_proj(self.attend(block.attn, block.ln_1(x), layer, start))
            x = x + block.mlp(block.ln_2(x))
        x = model.ln_f(x[-1])
        return x @ model.wte.weight.T if model.tied else model.lm_head(x)

    def attend(self, attn: Attention, x, layer: int, start: int):
        """The attention (t, d) of new tokens, whose keys and values join the cache."""
        stop = start + len(x)
        q, k, v = (part.view(len(x), attn.heads, attn.size).transpose(0, 1)
                   for part in attn.c_attn(x).chunk(3, dim=1))
        self.keys[layer, :, start:stop], self.values[layer, :, start:stop] = k, v
        y = F.scaled_dot_product_attention(q, self.keys[layer, :, :stop],
                                           self.values[layer, :, :stop], is_causal=start == 0)
        return y.transpose(0, 1).reshape(len(x), -1)
