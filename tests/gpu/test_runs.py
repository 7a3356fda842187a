"""Every strategy, precision and cache on a GPU computes the CPU's numbers, up to rounding."""

import subprocess
import sys

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.backend import to_host
from minipar.commands.main import main
from minipar.environment import find_mpirun, mpirun_environment
from minipar.inference import Engine, ModelRunner, SamplingParams, SchedulerConfig, generate
from minipar.inference.cache import CACHES, ContiguousKVCache
from minipar.testing import worlds
from tests.inference.test_other_arrays import KINDS, logits, model_of
from tests.parallel.test_strict_arrays import EVERYWHERE, case_for, train
from tests.support import expert_runs
from tests.support.cases import Case
from tests.train.test_device import RUN, WORDS
from tests.train.test_train import SMALL, losses, parse


def assert_same(device: dict, host: dict) -> None:
    """Host arrays of the same names and types, equal but for rounding in float64."""
    assert device.keys() == host.keys()
    for key, values in host.items():
        assert type(device[key]) is type(values), key
        np.testing.assert_allclose(device[key], values, rtol=1e-9, atol=1e-10, err_msg=key)


@worlds(4, mpi=())
@pytest.mark.parametrize("name", [pytest.param(each.values[0], id=each.values[0])
                                  for each in EVERYWHERE])
def test_every_strategy(world, name, on_device):
    def body(comm):
        host, device = (train(comm, name, case_for(name), place) for place in (np.array, on_device))
        assert_same(device, host)
    world.run(body)


@worlds(4, mpi=())
@pytest.mark.parametrize("model", ["gpt untied", "gpt grouped", "mlp"])
@pytest.mark.parametrize("name", ["dp", "zero2", "zero3", "dp 2 × tp 2"])
def test_other_models(world, name, model, on_device):
    def body(comm):
        case = Case(model, "sgd", "uneven", (4, 2))
        assert_same(*(train(comm, name, case, place) for place in (on_device, np.array)))
    world.run(body)


@worlds(4, mpi=())
@pytest.mark.parametrize(("model", "sizes", "name"), [
    ("deepseek", {"ep": 4}, "zero1"), ("probability", {"dp": 4, "ep": 2}, "fsdp"),
    ("batch", {"tp": 2, "ep": 2}, "ddp"), ("llama", {"pp": 2, "ep": 2}, "ddp")])
def test_experts(world, model, sizes, name, on_device):
    def body(comm):
        assert_same(*(expert_runs.train(comm, expert_runs.on(sizes, name), model, parts=2,
                                        place=place) for place in (on_device, np.array)))
    world.run(body)


@pytest.mark.parametrize("kind", [*CACHES.values(), ContiguousKVCache])
@pytest.mark.parametrize("name", KINDS)
def test_caches(name, kind, cupy):
    device = model_of(name, cupy.empty(0))
    for found, expected in zip(logits(device, kind), logits(model_of(name), kind), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_an_engine_and_generate(cupy):
    def tokens(model):
        engine = Engine(ModelRunner(model, 12, 4), SchedulerConfig(12, 4))
        found = [engine.submit(prompt, 8, SamplingParams(temperature), num_answers=2)
                 for prompt, temperature in (([1, 2, 3], 0), ([4, 5, 6, 7, 8], 1))]
        engine.run()
        return [answer.tokens for each in found for answer in each.answers] \
            + [list(generate(model, np.array([1, 2, 3]), 20, seed=1))]
    assert tokens(model_of("gpt", cupy.empty(0))) == tokens(model_of("gpt"))


# Numbers of 8 bits and fewer: one that lies between two codes may be rounded either way.
ROUNDED = {"fp8": 0.05, "fp16": 5e-3, "bf16 pipeline": 0.02, "int8 sums": 0.02,
           "int4 gathers": 0.05}


@pytest.mark.parametrize("words", WORDS)
def test_losses_of_the_training_program(words):
    options = [*RUN, *WORDS[words].split()]
    found, expected = (losses(2, parse(*options, "--device", device))
                       for device in ("cuda", "cpu"))
    np.testing.assert_allclose(found, expected, rtol=ROUNDED.get(words, 1e-5))


def test_a_run_is_saved_verified_and_resumed_on_the_cpu(tmp_path, capsys):
    words = ["train", *SMALL, *RUN, "--ranks", "2", "--save-every", "2"]
    assert main([*words, "--out", str(tmp_path / "gpu"), "--device", "cuda", "--sample", "4",
                 "--verify", "2"]) == 0
    said = capsys.readouterr().out
    assert "float32, on a GPU" in said and "the same: after 2 steps" in said
    assert main([*words, "--out", str(tmp_path / "cpu")]) == 0
    gpu, cpu = (files.load(tmp_path / name) for name in ("gpu", "cpu"))
    for name, values in cpu.model.items():
        np.testing.assert_allclose(gpu.model[name], values, atol=2e-4)
    assert main(["train", "--resume", str(tmp_path / "gpu"), "--ranks", "2", "--steps", "5"]) == 0


@pytest.mark.parametrize("words", ["--mesh dp=4 --strategy fsdp", "--mesh pp=2,tp=2"])
def test_real_ranks_share_a_gpu(words):
    command = [find_mpirun(), "-n", "4", sys.executable, "-m", "minipar", "train", *SMALL, *RUN,
               *words.split(), "--layers", "2", "--device", "cuda", "--verify", "2"]
    done = subprocess.run(command, env=mpirun_environment(), capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    assert "the same: after 2 steps" in done.stdout


def test_arrays_of_a_model_are_on_the_device(cupy):
    model = model_of("llama", cupy.empty(0))
    assert all(isinstance(p.data, cupy.ndarray) for p in model.parameters())
    ids = cupy.asarray(np.array([[1, 2, 3]]))
    model.loss(ids, ids).backward()
    assert all(isinstance(p.grad, cupy.ndarray) for p in model.parameters())
    assert np.isfinite(to_host(model.slabs[0].grad)).all()
