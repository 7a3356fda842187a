"""The floor: one training step of the GPT written by hand in NumPy, without autograd.

The same equations as `minipar.autograd` and `minipar.nn.gpt`, in the order in which they run, with
every derivative written out and nothing in between.  What autograd costs is the difference.

n = b t tokens, d = width, h = heads, V = vocabulary.  Activations are (n, d).
"""

import math

import numpy as np

from minipar.backend import l2_blocks

from .numpy_attention import attention, attention_backward


class NumpyGPT:
    """A GPT without dropout and with a head of its own, from the `state_dict` of minipar's."""

    def __init__(self, state: dict[str, np.ndarray], heads: int, lr: float = 1e-3):
        self.heads, self.lr, self.num_steps = heads, lr, 0
        self.num_layers = sum(name.endswith("ln_1.weight") for name in state)
        self.data = np.concatenate([array.reshape(-1) for array in state.values()])
        self.grad, self.m, self.v = (np.zeros_like(self.data) for _ in range(3))
        self.p, self.g, start = {}, {}, 0
        for name, array in state.items():
            stop = start + array.size
            self.p[name] = self.data[start:stop].reshape(array.shape)
            self.g[name] = self.grad[start:stop].reshape(array.shape)
            start = stop

    def step(self, ids: np.ndarray, targets: np.ndarray) -> float:
        """Forward, backward and AdamW on ids and targets (b, t); returns the loss."""
        p, g, (b, t) = self.p, self.g, ids.shape
        x = p["wte.weight"][ids]
        x += p["wpe.weight"][:t]
        x, layers = x.reshape(b * t, -1), []
        for i in range(self.num_layers):
            x, saved = self.block(x, f"h.{i}.", b)
            layers.append(saved)
        y, norm = self.layer_norm(x, "ln_f")
        loss, dlogits = cross_entropy(y @ p["lm_head.weight"], targets.reshape(-1, 1))

        np.matmul(y.T, dlogits, out=g["lm_head.weight"])
        dx = self.layer_norm_backward(dlogits @ p["lm_head.weight"].T, *norm, "ln_f")
        for i in reversed(range(self.num_layers)):
            dx = self.block_backward(dx, layers.pop(), f"h.{i}.", b)
        dx = dx.reshape(b, t, -1)
        np.einsum("btd->td", dx, out=g["wpe.weight"][:t])
        table = g["wte.weight"]
        table[...] = 0
        for token, row in zip(ids.reshape(-1).tolist(), dx.reshape(b * t, -1)):
            table[token] += row
        self.adamw()
        return loss

    def block(self, x: np.ndarray, name: str, b: int) -> tuple:
        """x (n, d) → x (n, d) and what backward needs."""
        a, norm_1 = self.layer_norm(x, name + "ln_1")
        qkv = self.linear(a, name + "attn.c_attn")
        out, probabilities = attention(qkv, b, self.heads)
        y = self.linear(out, name + "attn.c_proj")
        y += x
        c, norm_2 = self.layer_norm(y, name + "ln_2")
        f, slope = gelu(self.linear(c, name + "mlp.c_fc"))
        z = self.linear(f, name + "mlp.c_proj")
        z += y
        return z, (a, norm_1, qkv, probabilities, out, c, norm_2, f, slope)

    def block_backward(self, dz: np.ndarray, saved: tuple, name: str, b: int) -> np.ndarray:
        """dL/dx from dL/dz (n, d)."""
        a, norm_1, qkv, probabilities, out, c, norm_2, f, slope = saved
        df = self.linear_backward(dz, f, name + "mlp.c_proj")
        df *= slope
        dc = self.linear_backward(df, c, name + "mlp.c_fc")
        dy = self.layer_norm_backward(dc, *norm_2, name + "ln_2")
        dy += dz
        dout = self.linear_backward(dy, out, name + "attn.c_proj")
        dqkv = attention_backward(dout, qkv, probabilities, b, self.heads)
        da = self.linear_backward(dqkv, a, name + "attn.c_attn")
        dx = self.layer_norm_backward(da, *norm_1, name + "ln_1")
        dx += dy
        return dx

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        """y = x w + bias."""
        y = x @ self.p[name + ".weight"]
        y += self.p[name + ".bias"]
        return y

    def linear_backward(self, dy: np.ndarray, x: np.ndarray, name: str) -> np.ndarray:
        """dx = dy wᵀ, dw = xᵀ dy, dbias = Σ dy."""
        np.matmul(x.T, dy, out=self.g[name + ".weight"])
        np.einsum("ni->i", dy, out=self.g[name + ".bias"])
        return dy @ self.p[name + ".weight"].T

    def layer_norm(self, x: np.ndarray, name: str) -> tuple:
        """y = unit gain + bias."""
        n = x.shape[-1]
        unit = x - np.einsum("ni->n", x)[:, None] / n
        scale = 1 / np.sqrt(np.einsum("ni,ni->n", unit, unit)[:, None] / n + 1e-5)
        unit *= scale
        y = unit * self.p[name + ".weight"]
        y += self.p[name + ".bias"]
        return y, (unit, scale)

    def layer_norm_backward(self, dy, unit, scale, name: str) -> np.ndarray:
        """dx = (d - mean(d) - unit mean(d unit)) scale with d = dy gain."""
        np.einsum("ni,ni->i", dy, unit, out=self.g[name + ".weight"])
        np.einsum("ni->i", dy, out=self.g[name + ".bias"])
        dy *= self.p[name + ".weight"]
        n = dy.shape[-1]
        along = np.einsum("ni,ni->n", dy, unit)[:, None] / n
        dy -= np.einsum("ni->n", dy)[:, None] / n
        unit *= along
        dy -= unit
        dy *= scale
        return dy

    def adamw(self) -> None:
        """AdamW with PyTorch's defaults, a cache-sized block at a time."""
        self.num_steps += 1
        s = math.sqrt(1 - 0.999**self.num_steps)
        for p, g, m, v in l2_blocks(self.data, self.grad, self.m, self.v):
            m *= 0.9
            m += g * 0.1
            v *= 0.999
            g *= g
            g *= 0.001
            v += g
            update = np.sqrt(v, out=g)
            update += 1e-8 * s
            np.divide(m, update, out=update)
            update *= self.lr * s / (1 - 0.9**self.num_steps)
            p *= 1 - self.lr * 0.01
            p -= update


def gelu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """y and dy/dx; y takes the place of x."""
    a = math.sqrt(2 / math.pi)
    b = 0.044715 * a
    slope = np.empty_like(x)
    for x_, slope_ in l2_blocks(x, slope):
        square = x_ * x_
        p = square * b
        p += a
        p *= x_
        np.tanh(p, out=p)
        p *= 0.5
        p += 0.5
        x_ *= p
        square *= 6 * b
        square += 2 * a
        square *= x_
        np.subtract(1, p, out=slope_)
        slope_ *= square
        slope_ += p
    return x, slope


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean loss of targets (n, 1) and its gradient, which takes the place of logits (n, V)."""
    n = len(logits)
    logits -= logits.max(axis=-1, keepdims=True)
    at_target = np.take_along_axis(logits, targets, axis=-1)
    np.exp(logits, out=logits)
    total = np.einsum("nv->n", logits)[:, None]
    loss = float((np.log(total) - at_target).sum()) / n
    logits *= 1 / (n * total)
    logits[np.arange(n), targets[:, 0]] -= 1 / n
    return loss, logits
