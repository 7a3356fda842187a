"""The training loop against the same training written out by hand, step by step."""

import numpy as np
import pytest

from minipar.autograd import count_targets
from minipar.comm import Cluster
from minipar.inference import generate
from minipar.nn import GPT, GPTConfig
from minipar.nn.step_context import training_step
from minipar.optim import AdamW, clip_grad_norm, warmup_cosine
from minipar.train import start_run, train_steps
from minipar.train.tasks import make_task
from tests.train.test_train import parse


def by_hand(config) -> tuple[list[float], np.ndarray]:
    """`minipar train` written by hand: on one process, with nothing of its loop."""
    task = make_task(config)
    run, chosen = config.run, config.optimizer
    model = task.build().initialize(run.seed, np.float64)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    optimizer, losses = AdamW(model.slabs, chosen.lr, weight_decay=0), []
    for step in range(run.steps):
        inputs, targets, samples = task.batches.batch(step)
        model.zero_grad()
        with training_step(run.seed, step, samples):
            loss = model.loss(inputs, targets, count_targets(targets))
        loss.backward()
        clip_grad_norm(model.slabs, chosen.clip)
        optimizer.lr = warmup_cosine(step, chosen.lr, chosen.warmup, run.steps,
                                     chosen.lr / 10)
        for parameter in decayed:               # no biases, no layer norms
            parameter.data *= 1 - optimizer.lr * 0.3
        optimizer.step()
        losses.append(float(loss.data))
    return losses, model.slabs[0].data


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_the_loop_is_what_it_says(num_ranks, tmp_path):
    options = parse("--data", "synthetic", "--steps", "6", "--warmup", "2", "--dtype", "float64",
                    "--dropout", "0.3", "--clip", "0.05", "--set", "optimizer.weight_decay=0.3",
                    "--out",
                    str(tmp_path))
    losses, parameters = by_hand(options)

    def body(comm):
        run = start_run(comm, options, make_task(options))
        train_steps(comm, run)
        return run.losses, run.strategy.model.slabs[0].data, run.trace
    ours = Cluster(num_ranks).run(body)[0]
    np.testing.assert_allclose(ours[0][0], losses, rtol=1e-10)
    np.testing.assert_allclose(ours[0][1], parameters, rtol=1e-9, atol=1e-12)
    spans = ours[0][2].named_spans()
    assert {span.rank for span in spans} == set(range(num_ranks))       # one step, of all ranks
    assert sum(span.name == "AdamW optimizer" for span in spans) == num_ranks


def test_generation_follows_the_distribution():
    """Temperature 0 takes the likeliest token; 1 samples the softmax; a low one is sharper."""
    model = GPT(GPTConfig(5, context=4, num_layers=1, num_heads=1, width=8)).initialize(seed=1)
    model.wte.weight.data[...] *= 15                # far from uniform
    prompt = np.array([3, 1])
    logits = model(prompt[None]).data[0, -1].astype(float)

    def expected(temperature):
        weights = np.exp((logits - logits.max()) / temperature)
        return weights / weights.sum()

    def drawn(temperature):
        tokens = [next(generate(model, prompt, 1, temperature, seed)) for seed in range(1500)]
        return np.bincount(tokens, minlength=5) / len(tokens)
    assert np.all(expected(1.0) < 0.95)
    for temperature in (0.5, 1.0, 2.0):
        assert np.abs(drawn(temperature) - expected(temperature)).max() < 0.05
    assert drawn(0)[np.argmax(logits)] == 1.0
    with pytest.raises(ValueError, match="at least one token"):
        next(generate(model, np.array([], int), 1))


def test_generation_goes_beyond_the_context_and_is_repeatable():
    model = GPT(GPTConfig(5, context=4, num_layers=1, num_heads=1, width=8)).initialize()
    once, again = [list(generate(model, np.array([0]), 9, 1.0, seed=3)) for _ in range(2)]
    assert len(once) == 9 and once == again
    assert once != list(generate(model, np.array([0]), 9, 1.0, seed=4))
