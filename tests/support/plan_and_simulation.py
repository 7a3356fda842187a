"""The plan of `/minipar` beside `minipar simulate`: seconds and bytes of many layouts.  A program.

`python -m tests.support.plan_and_simulation` simulates them all, prints the table and writes it
into docs/pages/simulating.md.  tests/step_simulation/test_plan_agrees.py asserts what it shows.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from minipar.atomic_files import write_text
from minipar.plan.cluster import ClusterSpec, read_cluster
from minipar.plan.layout import Layout, parse_layout
from minipar.plan.memory import GIB, memory
from minipar.plan.models import GPTConfig, given_model
from minipar.plan.time.step_time import step_time
from minipar.step_simulation import fullest, simulate_step

PAGE = Path(__file__).parents[2] / "docs" / "pages" / "simulating.md"
SMALL = ("layers=8,width=1024,heads=16,kv_heads=4,vocab=32000,experts=16,expert_width=2048,"
         "shared_experts=1,sequence=2048")
# nodes × GPUs, a model, sequences of a step, a layout; tests in `make test` take the first ones
QUICK = f"""
1x8:h100 llama3-1b 32 dp=8
1x8:h100 llama3-1b 16 dp=8,kind=zero2
1x8:h100 llama3-1b 16 dp=8,kind=fsdp
1x8:h100 llama3-1b 16 pp=8
1x8:h100 llama3-1b 16 dp=4,tp=2,kind=zero1
1x8:a100 llama3-1b 16 pp=4,dp=2,kind=zero1
1x8:h100 gpt3-6.7b 16 tp=8
1x8:h100 gpt3-6.7b 16 tp=8,sp=0,microbatch=4
1x8:h100 gpt3-6.7b 16 dp=8,kind=zero1,remat=full
1x8:h100 gpt3-6.7b 32 pp=8,schedule=gpipe
1x8:h100 gpt3-6.7b 8 pp=4,tp=2,schedule=zb_h1
1x8:h100 mixtral-8x7b 8 dp=8,ep=4
1x8:h100 {SMALL} 32 dp=4,tp=2,ep=4,kind=zero1,microbatch=2
""".strip().splitlines()
SLOW = f"""
1x8:h100 llama3-8b 8 dp=8,kind=zero1,remat=selective
1x8:h100 llama3-8b 16 pp=4,tp=2,schedule=interleaved,v=2
1x8:h100 mixtral-8x7b 16 pp=4,dp=2,ep=2
1x8:h100 llama3-1b 32 dp=8,kind=zero1,microbatch=2
8x8:h100 llama3-1b 128 dp=64,kind=zero1
8x8:h100 llama3-1b 128 dp=64,kind=fsdp
1x8:h100 llama3-1b 8 cp=8
1x8:h100 llama3-8b 16 dp=8,kind=zero1
1x8:h100 llama3-8b 16 dp=8,kind=zero2
1x8:h100 llama3-8b 16 dp=8,kind=fsdp
1x8:h100 llama3-8b 8 dp=8,kind=zero1,remat=full
1x8:h100 llama3-8b 16 dp=8,kind=fsdp,remat=full
1x8:h100 llama3-8b 8 tp=8
1x8:h100 llama3-8b 8 tp=8,sp=0
1x8:h100 llama3-8b 16 pp=8
1x8:h100 llama3-8b 16 pp=4,dp=2
1x8:h100 llama3-8b 8 cp=8
1x8:h100 llama3-8b 8 cp=4,tp=2
1x8:h100 llama3-8b 16 pp=4,tp=2,schedule=zb_h1
1x8:a100 llama3-8b 16 tp=4,dp=2,kind=zero1
1x8:a100 llama3-8b 16 tp=8
4x8:h100 llama3-8b 64 dp=32,kind=zero1
4x8:h100 llama3-8b 64 dp=32,kind=fsdp
4x8:a100 llama3-8b 64 dp=32,kind=zero2
4x8:h100 llama3-8b 64 dp=8,tp=4,kind=zero1
8x8:h100 llama3-8b 64 dp=8,pp=4,tp=2,kind=zero1
8x8:h100 llama3-70b 32 tp=8,pp=8
8x8:h100 llama3-70b 64 dp=64,kind=fsdp
8x8:h100 llama3-70b 64 dp=64,kind=fsdp,remat=full
8x8:h100 llama3-70b 32 dp=2,tp=8,pp=4,kind=zero1
8x8:h100 llama3-70b 32 tp=8,pp=8,schedule=interleaved,v=2
8x8:h100 llama3-70b 16 dp=8,tp=8,kind=zero1
8x8:a100 llama3-70b 32 dp=2,tp=8,pp=4,kind=zero1
32x8:h100 llama3-70b 128 dp=8,tp=8,pp=4,kind=zero1
8x8:h100 llama3-70b 8 dp=4,cp=2,tp=8,kind=zero1
1x8:h100 gpt3-6.7b 16 dp=8,kind=zero1
1x8:h100 gpt3-6.7b 16 pp=4,dp=2,kind=zero1
1x8:a100 gpt3-6.7b 32 dp=8,kind=fsdp
4x8:h100 gpt3-13b 64 dp=4,tp=8,kind=zero1
4x8:h100 gpt3-13b 64 dp=8,pp=4,kind=zero1
4x8:a100 gpt3-13b 64 dp=8,pp=4
4x8:a100 gpt3-13b 64 dp=32,kind=fsdp
4x8:a100 gpt3-13b 32 dp=4,cp=2,tp=4,kind=zero1
4x8:h100 gpt3-13b 16 pp=4,tp=8,schedule=zb_v
8x8:h100 gpt3-39b 16 tp=8,pp=8,schedule=zb_h1
8x8:h100 gpt3-39b 16 tp=8,pp=8,schedule=zb_h2
8x8:a100 gpt3-39b 64 dp=2,tp=8,pp=4,kind=zero1
8x8:a100 gpt3-39b 16 tp=8,pp=8,schedule=v_half
8x8:h100 gpt3-39b 16 tp=8,pp=8,schedule=v_min
8x8:h100 gpt3-175b 32 tp=8,pp=8
8x8:a100 gpt3-175b 32 tp=8,pp=8,sp=0
8x8:h100 gpt3-175b 32 tp=8,pp=8,schedule=interleaved,v=3
8x8:h100 gpt3-175b 16 tp=8,pp=8,schedule=dualpipe_v
16x8:h100 gpt3-175b 64 dp=2,tp=8,pp=8,kind=zero1,schedule=gpipe
64x8:h100 gpt3-175b 64 dp=64,tp=8,kind=zero1,remat=full
128x8:h100 gpt3-175b 512 dp=8,tp=8,pp=16,kind=zero1
128x8:a100 gpt3-175b 256 dp=8,tp=8,pp=16,kind=zero1
128x8:h100 gpt3-175b 512 dp=16,tp=8,pp=8,kind=zero1,schedule=interleaved,v=3
1x8:h100 mixtral-8x7b 8 dp=8,ep=8
1x8:h100 mixtral-8x7b 16 dp=8,ep=2,kind=zero1
1x8:h100 mixtral-8x7b 16 dp=8,ep=4,kind=zero2
1x8:h100 mixtral-8x7b 16 dp=8,ep=4,kind=fsdp
1x8:h100 mixtral-8x7b 16 dp=8,kind=fsdp
1x8:h100 mixtral-8x7b 16 dp=8,ep=8,kind=zero1,remat=full
1x8:h100 mixtral-8x7b 8 tp=8
1x8:h100 mixtral-8x7b 8 dp=4,tp=2
1x8:h100 mixtral-8x7b 8 dp=4,tp=2,ep=4,sp=0,kind=zero1
1x8:h100 mixtral-8x7b 16 pp=4,tp=2,schedule=interleaved,v=2
1x8:a100 mixtral-8x7b 16 dp=8,ep=4,kind=zero1
2x8:h100 mixtral-8x7b 16 dp=8,tp=2,ep=8,kind=zero1
8x8:h100 mixtral-8x7b 64 dp=8,tp=8,ep=8,kind=zero1
4x8:h100 mixtral-8x7b 64 pp=4,dp=8,ep=8,kind=zero1
4x8:h100 mixtral-8x7b 64 dp=32,ep=8,kind=zero1
4x8:h100 gpt-oss-120b 64 pp=4,dp=8,ep=8,kind=zero1
2x8:h100 gpt-oss-120b 16 dp=16,ep=16,kind=zero1
4x8:h100 gpt-oss-120b 64 dp=32,ep=32,kind=fsdp
16x8:h100 gpt-oss-120b 128 dp=128,ep=128,kind=zero1
1x8:h100 {SMALL},gated=0 32 dp=8,ep=8,microbatch=4
1x8:h100 {SMALL} 64 dp=8,ep=8,kind=fsdp,microbatch=4
""".strip().splitlines()


class Compared(NamedTuple):
    """Seconds and bytes of the fullest rank, planned and simulated."""

    planned: float
    simulated: float
    planned_bytes: float
    simulated_bytes: float

    @property
    def time_error(self) -> float:
        """How many more seconds the plan says, relative to the simulation."""
        return self.planned / self.simulated - 1

    @property
    def bytes_error(self) -> float:
        """How many more bytes the plan says, relative to the simulation."""
        return self.planned_bytes / self.simulated_bytes - 1


def read(case: str) -> tuple[ClusterSpec, GPTConfig, Layout]:
    """The cluster, the model and the layout that a line of QUICK or SLOW says."""
    cluster, model, batch, text = case.split()
    layout = parse_layout(text, Layout(batch=int(batch)))
    return (read_cluster(f"{cluster}/minipar"), given_model(model),
            replace(layout, sp=layout.sp and layout.tp > 1))


def compare(case: str) -> Compared:
    """Plan a case, and simulate it."""
    cluster, model, layout = read(case)
    step = simulate_step(cluster, model, layout)
    return Compared(step_time(cluster, model, layout).seconds, step.seconds,
                    sum(memory(cluster, model, layout).values()), sum(fullest(step)[1].values()))


def lines(cases: list[str]) -> Iterator[str]:
    """The lines of the table."""
    yield "| GPUs | model | sequences | layout | plan | simulation | | GiB | |"
    yield "| --- " * 9 + "|"
    for case in cases:
        cluster, model, batch, _ = case.split()
        found, (_, _, layout) = compare(case), read(case)
        how = f"{layout}{', no sp' * (layout.tp > 1 and not layout.sp)}"
        errors = [f"{round(error, 3) + 0:+.1%}" for error in (found.time_error, found.bytes_error)]
        line = (f"| {cluster} | {model} | {batch} | {how} | {found.planned:.4g} s | "
                f"{found.simulated:.4g} s | {errors[0]} | "
                f"{found.simulated_bytes / GIB:.1f} | {errors[1]} |")
        yield line.replace(" -", " −").replace("%", " %")


def write(cases: list[str]) -> None:
    """Print the table, and write it into the page."""
    made = []
    for line in lines(cases):
        print(line, flush=True)
        made.append(line)
    before, rest = PAGE.read_text("utf-8").split("<!-- agree -->\n")
    table = "\n".join(["<!-- agree -->", "", *made, "", rest[rest.index("<!-- end"):]])
    write_text(PAGE, before + table)


if __name__ == "__main__":
    write(QUICK + SLOW)
