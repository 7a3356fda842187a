"""The ten problems: every bold number of docs/pages/problems.md is that of a formula."""

import re
from pathlib import Path

from minipar.nn import GPTConfig
from minipar.parallel.cost import activations, context_parallel, data_parallel, pipelines
from minipar.parallel.pipeline.schedule.simulate import Times

PAGE = (Path(__file__).parents[3] / "docs/pages/problems.md").read_text(encoding="utf-8")
PSI, GB, TIMES = 1_300_000_000, 1e9, Times(1, 1, 1)


def kept(name, sizes, p, **uses):
    return sum(data_parallel.memory_per_rank(name, sizes, p, **uses).values()) / GB


def layer(tp=1, parallel="tensor", remat="none"):
    config = GPTConfig(50257, 1024, 24, 16, 1024)
    return sum(activations.layer_activations(config, 1, tp, parallel, remat).values()) / 1e6


def fsdp(p):
    return kept("fsdp", [7_000_000_000 // 32] * 32, p, uses=range(32))


def enough(wanted):
    return next(m for m in range(8, 999)
                if pipelines.bubble("1f1b", 8, m, TIMES).of_total < wanted + 1e-12)


def sent(name, num_microbatches=1, psi=PSI):
    return data_parallel.paper_bytes(name, psi, 8, num_microbatches) / GB


def of_idle(name, v=1):
    return 100 * pipelines.bubble(name, 8, 32, TIMES, v).of_total


def of_busiest(order):
    return context_parallel.imbalance(context_parallel.computed_pairs(order, 8192, 4))


COMPUTED = {
    1: [f"{kept(name, [PSI], 8):.1f}" for name in ("ddp", "zero1")],
    2: [f"{fsdp(8) - 16 * 7 / 8:.3f}", str(next(p for p in range(1, 99) if fsdp(p) < 10))],
    3: [f"{mb:.0f}" for mb in (layer(), layer(8), layer(8, "sequence"))],
    4: [f"{layer(remat='selective'):.0f}", f"{layer(remat='full'):.1f}"],
    5: [f"{gb:g}" for gb in (sent("ddp"), sent("fsdp"), sent("zero2", 4))],
    6: [str(n) for n in data_parallel.all_reduce_elements(10, 4)],
    7: [f"{gb:.1f}" for gb in (data_parallel.data_parallel_bytes(10**8, [0] * 8, [0] * 8, 8)[
        "broadcast parameters"][0] / GB, sent("ddp", psi=10**8))],
    8: [f"{of_idle('1f1b'):.1f}", str(enough(0.05))],
    9: [*(f"{pipelines.makespan(name, 4, 8, TIMES):g}" for name in ("1f1b", "zb_h1")),
        f"{of_idle('interleaved', 4):.1f}", str(pipelines.in_flight("interleaved", 0, 8, 32, 4)),
        str(pipelines.in_flight("1f1b", 0, 8, 32))],
    10: [f"{of_busiest(order):.2f}" for order in ("contiguous", "zigzag")],
}


def test_every_bold_number_is_computed():
    parts = re.split(r"^\*\*(\d+)\. ", PAGE, flags=re.M)[1:]
    found = {int(number): re.findall(r"\*\*([\d.]+)\*\*", text)
             for number, text in zip(parts[::2], parts[1::2])}
    assert found == COMPUTED


def test_every_answer_is_folded():
    parts = re.split(r"^\*\*\d+\. ", PAGE, flags=re.M)[1:]
    for number, part in enumerate(parts, 1):
        question, _, answer = part.partition("<details markdown>\n<summary>Answer</summary>\n")
        told = re.findall(r"\*\*([\d.]+)\*\*", question)
        assert answer.count("</details>") == 1 and "?" in question, number
        assert not told or number == 3, "the third says what one rank keeps"
