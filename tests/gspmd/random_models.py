"""Small GPTs of random shapes, with random annotations, on random meshes."""

import math
import random

import numpy as np

from minipar import Cluster, DeviceMesh
from minipar.gspmd import P, ShardedFunction, plan
from minipar.nn import GPT, GPTConfig
from minipar.nn.rotary import RopeConfig

from .random_programs import MESHES


def loss(model, ids, targets):
    return model.loss(ids, targets, loss_divisor=10.0)


def random_config(rng: random.Random) -> GPTConfig:
    kv_heads = rng.choice([1, 1, 2, 3])
    heads, head_width = kv_heads * rng.choice([1, 1, 2, 3]), rng.choice([2, 4, 6])
    llama = rng.random() < 0.5
    return GPTConfig(
        rng.choice([7, 12]), rng.choice([3, 4, 6]), 1, heads, heads * head_width,
        num_kv_heads=kv_heads, bias=rng.random() < 0.5, tied=rng.random() < 0.5,
        rope=RopeConfig() if llama else None, norm=rng.choice(["layer", "rms"]),
        mlp=rng.choice(["gelu", "swiglu"]), mlp_width=rng.choice([None, 10]))


def check_model(seed: int) -> None:
    """Loss and gradients are those of one device; what all ranks send is planned."""
    rng = random.Random(seed)
    mesh, config = rng.choice(MESHES), random_config(rng)
    model = GPT(config).initialize(seed=seed, dtype=np.float64)
    ids, targets = np.random.default_rng(seed).integers(
        0, config.vocab_size, (2, rng.choice([1, 2, 5]), config.context))

    def spec(shape):
        entries = [()] * len(shape)
        for axis in rng.sample(list(mesh), len(mesh)):
            if rng.random() < 0.7:
                dim = rng.randrange(len(shape))
                entries[dim] = (*entries[dim], axis)
        return P(*[entry or None for entry in entries], priority=rng.choice([0, 0, 1]))

    annotations = {"ids": spec(ids.shape)} if rng.random() < 0.7 else {}
    annotations |= {name: spec(parameter.shape) for name, parameter in model.named_parameters()
                    if rng.random() < 0.2}
    planned = plan(loss, ids, targets, model=model, mesh=mesh, annotations=annotations,
                   names=["ids", "targets"])
    value = loss(model, ids, targets)
    value.backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}

    def body(comm):
        step = ShardedFunction(planned, DeviceMesh(comm, order=tuple(mesh), **mesh), model)
        step.load_state_dict(model.state_dict())
        comm.start_trace()
        result = step(ids, targets)
        forward = comm.stop_trace().bytes_sent(comm.rank)
        comm.start_trace()
        result.backward()
        backward = comm.stop_trace().bytes_sent(comm.rank)
        errors = [abs(result.item() - value.item())]
        for name, parameter in step.parameters.items():
            wanted = parameter.local_part(grads[name])
            own = np.zeros(wanted.shape) if parameter.grad is None else parameter.grad
            errors.append(float(np.max(np.abs(own - wanted), initial=0)))
        return forward, backward, max(errors)

    sent = np.array(Cluster(math.prod(mesh.values())).run(body)[0])
    what = (seed, mesh, config, annotations, sent)
    assert sent[:, 2].max() < 1e-10, what
    assert abs(sent[:, 0].mean() - planned.program.num_bytes) < 1e-6, what
    assert abs(sent[:, 1].mean() - planned.program.gradient_bytes) < 1e-6, what
