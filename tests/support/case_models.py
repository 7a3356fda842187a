"""The models of the training runs of `cases.py`, by name."""

from minipar.nn import GPT, MLP, GPTConfig, RopeConfig

VOCABULARY, TIME, WIDTH = 11, 6, 8


def gpt(**changes):
    """A GPT of three blocks, so that there is a unit that is neither the first nor the last."""
    sizes = {"context": TIME, "num_layers": 3, "num_heads": 2, "width": WIDTH, **changes}
    return lambda: GPT(GPTConfig(VOCABULARY, **sizes))


LLAMA = {"num_heads": 4, "num_kv_heads": 2, "norm": "rms", "mlp": "swiglu", "bias": False,
         "rope": RopeConfig(100.0, "llama3", 4.0, original_context=4)}
MODELS = {
    "gpt tied": gpt(), "gpt untied": gpt(tied=False), "gpt one block": gpt(num_layers=1),
    "gpt grouped": gpt(num_heads=4, num_kv_heads=2), "gpt dropout": gpt(dropout=0.3),
    "gpt long": gpt(context=8, dropout=0.3), "llama": gpt(**LLAMA, dropout=0.3),
    "mlp": lambda: MLP([4, 7, 5, VOCABULARY]),
    "mlp dropout": lambda: MLP([4, 7, 5, VOCABULARY], dropout=0.3),
}
DEEP = {        # for pipelines: parts for four ranks with two stages each
    "mlp deep": lambda: MLP([4, 7, 5, 6, 7, 8, 5, 6, VOCABULARY], dropout=0.3),
    "gpt deep tied": gpt(num_layers=6, dropout=0.3),
    "gpt deep untied": gpt(num_layers=6, dropout=0.3, tied=False),
    "llama deep tied": gpt(**LLAMA, num_layers=6, dropout=0.3),
}
