"""Training runs of GPTs with experts: the models, the batches, and one process to compare with."""

from functools import cache

import numpy as np

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, GPTConfig, MoEConfig, RopeConfig
from minipar.optim import NO_DECAY_FOR_VECTORS, SGD, AdamW
from minipar.optim.whole_tensors.lamb import LAMB
from minipar.optim.whole_tensors.muon import Muon
from minipar.parallel.expert.router_bias import balance_routers
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy
from tests.support.cases import compare, with_remat

VOCABULARY, TIME, ROWS, STEPS = 11, 6, 16, 2


def gpt(num_layers=2, dropout=0.0, **experts):
    """A GPT of narrow experts; both losses, so that they are compared, too."""
    config = MoEConfig(**{"num_experts": 8, "width": 6, "balance_loss": 0.1, "z_loss": 0.01,
                          **experts})
    return lambda: GPT(GPTConfig(VOCABULARY, TIME, num_layers, 2, 8, dropout=dropout,
                                 experts=config))


DEEPSEEK = {"scores": "sigmoid", "bias_rate": 0.01, "num_groups": 4, "top_groups": 2, "scale": 2.5,
            "num_shared": 1}
MODELS = {
    "plain": gpt(), "dropout": gpt(dropout=0.3), "top 1": gpt(top_k=1),
    "dropped": gpt(capacity_factor=0.7), "probability": gpt(capacity_factor=0.7,
                                                            drop="probability"),
    "deepseek": gpt(**DEEPSEEK),
    "bias": gpt(num_layers=6, num_experts=4, balance_loss=0, z_loss=0, bias_rate=0.1),
    "batch": gpt(balance_per="batch"),
    "uneven": gpt(num_experts=5, top_k=3, every=2), "deep": gpt(num_layers=6, **DEEPSEEK),
    "llama": lambda: GPT(GPTConfig(
        VOCABULARY, TIME, 2, 4, 8, num_kv_heads=2, tied=False, norm="rms", mlp="swiglu",
        bias=False, rope=RopeConfig(100.0), experts=MoEConfig(8, 2, width=6, num_shared=2))),
}
OPTIMIZERS = {
    "sgd": lambda slabs: SGD(slabs, lr=0.3, momentum=0.9),
    "adamw": lambda slabs: AdamW(slabs, lr=0.01, weight_decay=0.3, groups=[NO_DECAY_FOR_VECTORS]),
    "muon": lambda slabs: Muon(slabs, lr=0.01),
    "lamb": lambda slabs: LAMB(slabs, lr=0.05),
}


def on(sizes, name="ddp", **options):
    """The strategy `name` on a mesh of these sizes."""
    return lambda model, comm: make_strategy(name, model, DeviceMesh(comm, **sizes), **options)


def batch(step, mask="uneven"):
    """All inputs and targets of a step; some targets, or most, do not count."""
    draw = np.random.default_rng(step)
    ids, targets = draw.integers(0, VOCABULARY, (2, ROWS, TIME))
    if mask == "uneven":
        targets[draw.random(targets.shape) < 0.4] = -100
    elif mask == "one target":
        keep = targets[3, 2]
        targets[...] = -100
        targets[3, 2] = keep
    return ids, targets


def take_steps(strategy, optimizer, first=0, steps=STEPS, parts=1, mask="uneven", max_norm=0.5,
               rows=ROWS, place=np.array):
    """Train on; losses, norms, loads and gradients of each step, parameters, optimizer states."""
    found = {}
    for step in range(first, first + steps):
        ids, targets = batch(step, mask)
        batches = []
        for part in np.array_split(np.arange(rows), parts):
            mine = part[list(strategy.rows(len(part)))].astype(int)
            batches.append(Microbatch(place(ids[mine]), place(targets[mine]), mine))
        optimizer.zero_grad()
        found[f"loss {step}"] = strategy.forward_backward(batches, 3, step)
        found[f"norm {step}"] = strategy.clip_grad_norm(max_norm)
        for name, gradient in strategy.slabs.gradients().items():
            found[f"gradient {step} of {name}"] = gradient
        for name, load in balance_routers(strategy).items():
            found[f"load {step} of {name}"] = np.append(load.load, load.num_dropped)
        strategy.step(optimizer)
    return found | strategy.state_dict() | optimizer.state_dict()


def train(comm, make, model, optimizer="sgd", remat="none", place=np.array, **options):
    """Two steps of a new model, on the device where `place` puts arrays."""
    made = MODELS[model]().initialize(0, np.float64, place(np.empty(0)))
    strategy = make(with_remat(made, remat, "", comm) if remat != "none" else made, comm)
    return take_steps(strategy, OPTIMIZERS[optimizer](strategy.slabs), place=place, **options)


@cache
def alone(model, optimizer="sgd", **options):
    """What `train` returns on one process, the batch at once."""
    return Cluster(1).run(lambda comm: train(comm, Strategy, model, optimizer, **options))[0][0]


def check(world, make, model="plain", optimizer="sgd", remat="none", parts=1, name="", **options):
    """The run is that of one process to 1e-10, on every rank; `name` is the strategy's, if any."""
    expected = alone(model, optimizer, **options)
    world.run(lambda comm: compare(
        comm, name, train(comm, make, model, optimizer, remat, parts=parts, **options), expected,
        atol=1e-12))
