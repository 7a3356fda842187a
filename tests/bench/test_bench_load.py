"""Loads in virtual time: the same by the same seed; batching and paging help as they must."""

import pytest

from minipar.inference.arrivals import poisson_arrivals
from minipar.inference.cache import SequenceInput
from minipar.inference.model_runner import StepWork
from minipar.nn import GPT, GPTConfig
from minipar.viz import draw_load_curve
from tests.bench.simulated_load import CostModel, run_load, ways_of_serving

MODEL = GPTConfig(50257, 1024, num_layers=12, num_heads=12, width=768)
DEVICE = {"flops_per_second": 1e13, "memory_bandwidth": 1e11}


def loads(rate: float) -> dict:
    arrivals = poisson_arrivals(40, rate, MODEL.context, 60, 80, seed=2)
    return {way: run_load(arrivals, MODEL, config, **DEVICE)
            for way, config in ways_of_serving(MODEL.context, 4 * 1024).items()}


def test_arrivals_come_at_the_rate_and_depend_on_the_seed():
    arrivals = poisson_arrivals(2000, 5.0, 512, seed=1)
    assert arrivals == poisson_arrivals(2000, 5.0, 512, seed=1)
    assert arrivals != poisson_arrivals(2000, 5.0, 512, seed=2)
    assert arrivals[-1].time == pytest.approx(400, rel=0.1)
    assert all(each.prompt >= 1 and each.answer >= 1 and each.prompt + each.answer <= 512
               for each in arrivals)


def test_the_sizes_on_paper_are_those_of_the_model():
    for config in (MODEL, GPTConfig(101, 64, 2, 4, 32, num_kv_heads=2, mlp="swiglu", bias=False)):
        weights = sum(p.data.size for name, p in GPT(config).to_empty().named_parameters()
                      if p.ndim == 2 and not name.startswith("wpe"))
        sizes = CostModel.of(config)
        assert sizes.num_weights == weights
        work = StepWork([SequenceInput([1], 9, [0])])
        assert sizes.bytes(work) == 2 * weights + 10 * sizes.bytes_per_token


def test_continuous_batches_and_pages_shorten_the_wait():
    static, contiguous, paged = loads(8.0).values()
    assert paged.seconds_per_token < contiguous.seconds_per_token < static.seconds_per_token
    assert paged.first_token_median < contiguous.first_token_median < static.first_token_median
    assert paged.waste < 0.1 < contiguous.waste
    assert paged.most_running > contiguous.most_running == static.most_running == 4


def test_a_low_rate_leaves_nothing_to_wait_for(tmp_path):
    alone = loads(0.05)
    first = next(iter(alone.values()))
    assert all(each.first_token_median == pytest.approx(first.first_token_median)
               for each in alone.values())
    path = draw_load_curve(tmp_path / "load.png", {way: [each] for way, each in alone.items()})
    assert path.read_bytes().startswith(b"\x89PNG")
