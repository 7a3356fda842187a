"""The table and pictures of docs/pages/slow_networks.md, by `-m tests.support.slow_network_page`.

It trains the model of `make demo` by each method on two simulated nodes, which takes an hour;
`--draw` draws what was measured.  Losses do not depend on the network, seconds not on the seed.
"""

import json
import sys
from pathlib import Path

import numpy as np

from minipar.comm import Cluster
from minipar.comm.simulated.links import Link, Links
from minipar.launcher import metered
from minipar.parallel.registry import make_strategy
from minipar.parallel.wire_formats.gradient_compression.top_k import TopK
from minipar.parallel.wire_formats.wire import UNCOMPRESSED
from minipar.train.check import checked
from minipar.train.config import TrainConfig
from minipar.train.loop import take_step
from minipar.train.start import start_run
from minipar.train.tasks import make_task
from minipar.viz import CostedRun, draw_loss_by_cost, draw_sparse_or_dense
from tests.support.given_gradients import GivenGradients, gradients_along

IMAGES = Path(__file__).parents[2] / "docs" / "pages" / "images"
RESULTS = Path("out/slow_networks.json")
STEPS, SEEDS, LAST, BATCH = 150, (0, 1, 2), 20, 16
WITHIN, BETWEEN, FLOPS = Link(5e-6, 1e10), Link(5e-4, 12.5e6), 1e12     # 100 Mbit/s between nodes
SGD = {"optimizer": "sgd", "momentum": 0.0, "clip": 0.0}
METHODS = {
    "DDP": {}, "PowerSGD, rank 8": {"reduce_dtype": "powersgd", "rank": 8},
    "local SGD, 8 steps": {"strategy": "local_sgd", "every": 8},
    "DiLoCo, 8 steps": {"strategy": "diloco", "every": 8},
    "gossip": {"strategy": "gossip"}, "elastic, 4 steps": {"strategy": "elastic", "every": 4},
    "DDP, SGD": {"optimizer": "sgd"},
    "PowerSGD, rank 4, SGD": {"optimizer": "sgd", "reduce_dtype": "powersgd"},
    "top-k, 5 %, SGD": {"optimizer": "sgd", "reduce_dtype": "top_k", "density": 0.05},
    "signs, SGD": {"optimizer": "sgd", "reduce_dtype": "signs"},
    "TernGrad, SGD": {"optimizer": "sgd", "reduce_dtype": "terngrad"},
    "DGC, 5 %": {"reduce_dtype": "dgc", "density": 0.05, "wire_clip": 2.0, "lr": 0.1, **SGD},
    "1-bit Adam": {"reduce_dtype": "onebit_adam", "beta2": 0.95, "lr": 1e-3, **SGD},
}


def run(options: dict, seed: int) -> dict[str, list[float]]:
    """Of each step: the loss, the virtual time of its end, and the bytes of rank 0 so far."""
    config = checked(TrainConfig().updated(mesh="dp=4", steps=STEPS, batch=BATCH, seed=seed,
                                           **options))
    task = make_task(config)

    def body(comm):
        state = start_run(comm, config, task)
        begin, found = comm.now(), {"loss": [], "seconds": [], "bytes": []}
        comm.start_trace()
        for step in range(STEPS):
            found["loss"].append(take_step(state, step))
            found["seconds"].append(comm.now() - begin)
            found["bytes"].append(comm.stop_trace().bytes_sent(comm.rank))
            comm.start_trace()
        return found | {"bytes": np.cumsum(found["bytes"]).tolist()}
    return Cluster(nodes=2, devices_per_node=2, links=Links(WITHIN, BETWEEN),
                   flops_per_second=FLOPS).run(metered(body))[0][0]


def measure(names: list[str]) -> None:
    """Train by each method and seed that is not in the results yet."""
    for seed in SEEDS:
        for name in names:
            found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            if str(seed) not in found.setdefault(name, {}):
                found[name][str(seed)] = run(METHODS[name], seed)
                RESULTS.parent.mkdir(exist_ok=True)
                RESULTS.write_text(json.dumps(found))
                print(name, seed, np.mean(found[name][str(seed)]["loss"][-LAST:]), flush=True)


def draw() -> None:
    """The pictures, and the rows of the table on stdout."""
    found = json.loads(RESULTS.read_text())
    runs = {name: [CostedRun(seeds[seed]["loss"], seeds[seed]["seconds"], seeds[seed]["bytes"])
                   for seed in map(str, SEEDS) if seed in seeds] for name, seeds in found.items()}
    apart = [name for name in runs if "strategy" in METHODS[name]]
    sgd = [name for name in runs if METHODS[name].get("optimizer") == "sgd" and name not in apart]
    adam = ["DDP", *(name for name in runs if name not in (*apart, *sgd, "DDP"))]
    rows = {"few numbers, few bits: with AdamW": adam, "with SGD": sgd,
            "seldom: ranks that train apart, with AdamW": ["DDP", *apart]}
    draw_loss_by_cost(IMAGES / "slow_networks.png",
                      {title: {name: runs[name] for name in row} for title, row in rows.items()},
                      "The demo's model on two nodes with 100 Mbit/s between them")
    draw_sparse_or_dense(IMAGES / "sparse_or_dense.png", {p: {
        density: counted_quotient(p, density) for density in (0.002, 0.01, 0.05, 0.2, 0.8)}
        for p in (2, 4, 8, 16)}, title="Top-k sends less than a dense sum below a density of 1/p")
    for name, row in runs.items():
        ends = [np.mean(run.losses[-LAST:]) for run in row]
        last = row[0].seconds[-1] - row[0].seconds[-1 - LAST]
        sent = row[0].num_bytes[-1] - row[0].num_bytes[-1 - 2 * LAST]
        base = runs["DDP, SGD" if name in sgd and name != "1-bit Adam" else "DDP"]
        gaps = [f"{end - np.mean(run.losses[-LAST:]):+.3f}" for end, run in zip(ends, base)]
        print(f"| {name} | {1000 * last / LAST:.1f} ms | {sent / (2 * LAST):,.0f} | "
              f"{row[0].seconds[-1]:.1f} s | {np.mean(ends):.3f} | {', '.join(gaps)} |")


def counted_quotient(p: int, density: float, size: int = 64) -> float:
    """Bytes that a rank sends by top-k of a matrix, over those of a dense sum; counted."""
    def body(comm):
        sent = []
        for wire in (TopK(density), UNCOMPRESSED):
            strategy = make_strategy("ddp", GivenGradients({"w": (size, size)}, np.float32), comm,
                                     wire=wire)
            comm.start_trace()
            gradients_along(strategy, {"w": np.ones((size, size))})
            sent.append(comm.stop_trace().bytes_sent(comm.rank))
        return sent[0] / sent[1]
    return Cluster(p, chooser=None).run(body)[0][0]


if __name__ == "__main__":
    if "--draw" not in sys.argv:
        measure([name for name in METHODS if name in sys.argv[1:]] or [*METHODS])
    draw()
