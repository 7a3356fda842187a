"""Models, data and training steps for the tests of tensor parallelism."""

import numpy as np

from minipar.nn import GPT, MLP, GPTConfig, RopeConfig
from minipar.nn.step_context import training_step
from minipar.optim import SGD, AdamW, clip_grad_norm
from minipar.parallel.tensor.parallelize import parallelize

VOCABULARY, TIME, BATCH = 11, 12, 3         # 11: a prime, so ranks hold unequal parts
DRAW = np.random.default_rng(0)
IDS = DRAW.integers(0, VOCABULARY, (3, BATCH, TIME))        # for three steps
TARGETS = np.where(DRAW.random(IDS.shape) < 0.3, -100, DRAW.integers(0, VOCABULARY, IDS.shape))
IMAGES = DRAW.standard_normal((3, BATCH, 4))


def gpt(**changes):
    sizes = {"context": TIME, "num_layers": 2, "num_heads": 12, "width": 24, **changes}
    return lambda: GPT(GPTConfig(VOCABULARY, **sizes))


GPTS = {"tied": gpt(), "untied": gpt(tied=False), "dropout": gpt(dropout=0.3),
        "llama": gpt(num_kv_heads=12, norm="rms", mlp="swiglu", mlp_width=14, rope=RopeConfig(),
                     bias=False, dropout=0.2),
        "grouped": gpt(num_heads=24, num_kv_heads=12, width=48, dropout=0.2, num_layers=1)}
MLPS = {"three layers": lambda: MLP([4, 7, 9, VOCABULARY]),
        "four, dropout": lambda: MLP([4, 7, 6, 5, VOCABULARY], dropout=0.3),
        "one layer": lambda: MLP([4, VOCABULARY])}
OPTIMIZERS = {"sgd": lambda slabs: SGD(slabs, lr=0.3, momentum=0.9),
              "adamw": lambda slabs: AdamW(slabs, lr=0.01)}


def inputs_of(model, step):
    """The arguments of model.loss."""
    if isinstance(model, MLP):
        return IMAGES[step], TARGETS[step][:, 0]
    return IDS[step], TARGETS[step]


def gradients(model):
    """Whole gradients by name, of one process or of all ranks."""
    for slab in model.slabs:
        slab.complete_grad()
    return model.slabs.gradients()


def train(model, comm=None, sequence=False, optimizer="sgd", cut_first=True, gather_again=False):
    """Three steps: all losses, norms and gradients, and the final states, logits and parameters."""
    if comm is not None and cut_first:
        parallelize(model, comm, sequence, gather_again)
    model.initialize(seed=3, dtype=np.float64)
    if comm is not None and not cut_first:
        parallelize(model, comm, sequence, gather_again)
    stepper, found = OPTIMIZERS[optimizer](model.slabs), {}
    for step in range(3):
        stepper.zero_grad()
        with training_step(5, step, step * BATCH + np.arange(BATCH)):
            loss = model.loss(*inputs_of(model, step))
        loss.backward()
        found[f"loss {step}"] = loss.data
        found |= {f"gradient {step} {name}": g for name, g in gradients(model).items()}
        found[f"norm {step}"] = clip_grad_norm(model.slabs, 0.5)
        stepper.step()
    found |= stepper.state_dict()
    found["logits"] = model(IDS[0]).data if isinstance(model, GPT) else model.logits(IMAGES[0]).data
    return found | model.state_dict()
