"""`minipar train --device cuda`, on strict arrays in place of CuPy's: the CPU's numbers."""

import sys

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.comm import Cluster
from minipar.commands.main import main
from minipar.parallel.wire_formats.registry import WIRES, tensor_wire
from minipar.train.loop import microbatches
from minipar.train.setup import device as device_options
from minipar.train.start import start_run
from minipar.train.tasks import make_task
from tests.support.cases import APART
from tests.support.strict_array import CUDARuntimeError, Device, StrictArray, as_cupy
from tests.train.test_train import SMALL, losses, parse

RUN = ["--data", "synthetic", "--steps", "3", "--warmup", "1", "--dropout", "0.1", "--layers", "3"]
DIRECTION = " --optimizer sgd --set optimizer.momentum=0 --clip 0"      # of wires with momentum
WORDS = {
    **{name: f"--strategy {name}" for name in APART},
    **{name: f"--reduce-dtype {name}{DIRECTION * wire.has_momentum}"
       for name in WIRES if (wire := tensor_wire(name))},
    "ddp": "", "fp16": "--precision fp16", "fp8": "--precision fp8",
    "bf16 pipeline": "--precision bf16 --mesh pp=2", "int8 sums": "--reduce-dtype int8",
    "powersgd": "--reduce-dtype powersgd --set messages.start=1",
    "diloco": "--strategy diloco --every 2", "elastic": "--strategy elastic --every 2",
    "int4 gathers": "--strategy fsdp --gather-dtype int4",
    "remat": "--remat sqrt --strategy zero2", "optimal remat": "--remat optimal:400KB --mesh pp=2",
    "tensor": "--mesh tp=2 --sequence-parallel --set model.kv_heads=2",
    "sgd": "--optimizer sgd --clip 0.1",
}


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.one_in(6)
def test_the_losses_are_the_cpu_s_to_the_last_bit(words, monkeypatch):
    options = [*RUN, *WORDS[words].split()]
    expected = losses(2, parse(*options))
    with as_cupy(monkeypatch):
        assert losses(2, parse(*options, "--device", "cuda")) == expected


def test_everything_is_on_the_device(monkeypatch):
    with as_cupy(monkeypatch):
        options = parse(*RUN, "--device", "cuda")

        def body(comm):
            run = start_run(comm, options, make_task(options))
            (slab,), (batch,) = run.strategy.slabs, microbatches(run, 0)
            return [slab.data, slab.grad, *run.optimizer.states[0].values(), batch.inputs,
                    batch.targets], batch.samples
        for arrays, samples in Cluster(2).run(body)[0]:
            assert {type(array) for array in arrays} == {StrictArray}
            assert type(samples) is np.ndarray


def test_a_run_is_saved_shown_verified_and_resumed_on_the_cpu(tmp_path, monkeypatch, capsys):
    words = ["train", *SMALL, *RUN, "--ranks", "2", "--save-every", "2"]
    assert main([*words, "--out", str(tmp_path / "cpu")]) == 0
    with as_cupy(monkeypatch):
        assert main([*words, "--out", str(tmp_path / "gpu"), "--device", "cuda", "--sample", "4",
                     "--verify", "2"]) == 0
    said = capsys.readouterr().out
    assert "float32, on a GPU" in said and "the same: after 2 steps" in said
    cpu, gpu = (files.load(tmp_path / name) for name in ("cpu", "gpu"))
    for ours, theirs in ((gpu.model, cpu.model), (gpu.optimizer, cpu.optimizer)):
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
    assert "device" not in gpu.description["config"]["run"]
    (tmp_path / "gpu" / "checkpoint.previous.npz").rename(tmp_path / "gpu" / "checkpoint.npz")
    assert main(["train", "--resume", str(tmp_path / "gpu"), "--ranks", "2"]) == 0
    resumed = files.load(tmp_path / "gpu")
    assert all(np.array_equal(resumed.model[key], cpu.model[key]) for key in cpu.model)


def test_ranks_take_the_gpus_in_turn_and_simulated_ones_share_the_first(monkeypatch):
    options = parse(*RUN).updated(device="cuda")
    with as_cupy(monkeypatch, num_gpus=3):
        Cluster(5).run(lambda comm: device_options.device_array(options, comm))
        assert Device.used == [0] * 5
        monkeypatch.setattr(device_options, "launched", lambda: True)
        Device.used.clear()
        Cluster(5).run(lambda comm: device_options.device_array(options, comm))
        assert sorted(Device.used) == [0, 0, 1, 1, 2]


def no_driver():
    raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")


@pytest.mark.parametrize("words, said", [
    ("--offload optimizer", "--offload keeps arrays in a file of the host, which does not go with"),
    ("--memory-limit 1GB", "--memory-limit limits the memory of the host, which does not go with"),
    ("", "--device cuda finds no GPU (cudaErrorNoDevice: no CUDA-capable device is detected): l"),
    (None, "--device cuda finds no GPU: leave --device out"),
    (0, "--device cuda needs CuPy, which is not installed: pip install '.[cuda]'")])
def test_what_is_not_there_is_one_line(words, said, monkeypatch, capsys):
    with as_cupy(monkeypatch, num_gpus=0 if words is None else 1) as cupy:
        if words == "":
            cupy.cuda.runtime.getDeviceCount = no_driver
        if words == 0:
            sys.modules["cupy"] = None          # as_cupy takes it away again
        assert main(["train", *SMALL, "--device", "cuda", *(words or "").split()]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
