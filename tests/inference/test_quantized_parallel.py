"""Quantized models over tensor and pipeline ranks: the logits and tokens of one process."""

from itertools import cycle

import numpy as np
import pytest

from minipar.autograd import no_grad
from minipar.comm import Cluster
from minipar.compress import FLOAT_GRIDS, Granularity, IntGrid, pack_quantized
from minipar.compress.quantization.layers import QuantizedLayer
from minipar.compress.quantization.post_training import quantize
from minipar.inference.engine import Engine
from minipar.inference.model_runner import ModelRunner
from minipar.inference.parallel.pipeline_engine import PipelineEngine
from minipar.inference.parallel.tensor_runner import TensorParallelRunner
from minipar.inference.sampling import SamplingParams
from minipar.inference.scheduling import SchedulerConfig
from minipar.nn import GPT, GPTConfig, RopeConfig
from minipar.parallel.tensor.parallelize import parallelize
from minipar.testing import worlds
from tests.support.sweeps import every

WORDS, CONFIG = 31, SchedulerConfig(num_blocks=20, block_size=4)
IDS = np.random.default_rng(0).integers(0, WORDS, (2, 20))
LLAMA = {"norm": "rms", "mlp": "swiglu", "bias": False, "rope": RopeConfig(), "num_kv_heads": 2}
WAYS = {
    "int8": {}, "per tensor": {"per": Granularity("tensor")},
    # 48 inputs over two ranks: the cut is in the middle of the first group
    "int4": {"grid": IntGrid(4), "per": Granularity("group", 32)},
    "gptq": {"grid": IntGrid(3, "asymmetric"), "per": Granularity("group", 32), "method": "gptq",
             "order": "activation"},
    "inputs too": {"activations": True}, "mxfp4": {"grid": FLOAT_GRIDS["mxfp4"]},
    "some": {"skip": ["h.1.*", "wte"]}}


def gpt(way: str, **sizes) -> GPT:
    model = GPT(GPTConfig(WORDS, 48, num_layers=3, num_heads=4, width=48, **sizes))
    model.initialize(1, np.float64)
    for parameter in model.parameters():
        parameter.data *= 4 if parameter.data.ndim > 1 else 1       # else nearly all are alike
    return quantize(model, calibration=[IDS], **WAYS[way])


def tokens_by(engine) -> list[list[int]]:
    found = [engine.submit(prompt, 6, SamplingParams(temperature=i, seed=i))
             for i, prompt in enumerate(([1, 2, 3], [4, 5, 6, 7, 8, 9]))]
    engine.run()
    return [each.answers[0].tokens for each in found]


def logits(model: GPT) -> np.ndarray:
    with no_grad():
        return model.logits(IDS).data


SIZES = {"gpt2": {}, "llama": LLAMA, "untied": {"tied": False}}


@worlds(2, mpi=(2,))
@pytest.mark.parametrize("way, sizes", every(3, (        # of three, each way has one in make test
    pytest.param(way, SIZES[model], id=f"{model}-{way}") for way, models in zip(
        WAYS, cycle([("gpt2", "llama", "untied"), ("llama", "untied", "gpt2"),
                     ("untied", "gpt2", "llama")])) for model in models)))
@pytest.mark.one_in(3)
def test_results_are_those_of_one_process(world, way, sizes):
    whole = gpt(way, **sizes)
    expected = tokens_by(Engine(ModelRunner(whole, 20, 4), CONFIG)), logits(whole)

    def body(comm):
        model = parallelize(gpt(way, **sizes), comm)
        np.testing.assert_allclose(logits(model), expected[1], atol=1e-10)
        assert tokens_by(Engine(TensorParallelRunner(model, comm, 20, 4), CONFIG)) == expected[0]
        assert tokens_by(PipelineEngine(gpt(way, **sizes), comm, CONFIG)) == expected[0]
    world.run(body)


def weight_bytes(model: GPT) -> int:
    """The bytes of all weights, quantized or not."""
    quantized = [m.quantized.nbytes for _, m in model.named_modules()
                 if isinstance(m, QuantizedLayer)]
    return sum(quantized) + sum(p.data.nbytes for p in model.parameters())


def test_each_rank_has_its_part_of_the_codes():
    whole = weight_bytes(gpt("int8"))

    def codes(comm):
        model = parallelize(gpt("int8"), comm)
        cut = weight_bytes(model)
        with pytest.raises(ValueError, match="a part of a layer: save the model before"):
            pack_quantized(model)
        staged = PipelineEngine(gpt("int8"), comm, CONFIG).groups[0].stage
        layers = [m for _, m in staged.model.named_modules() if isinstance(m, QuantizedLayer)]
        return cut, sum(m.quantized.nbytes for m in layers if "quantized" in m.__dict__)
    for cut, staged in Cluster(2).run(codes)[0]:
        assert cut < 0.6 * whole and staged < 0.6 * whole      # norms, biases, wpe are whole
