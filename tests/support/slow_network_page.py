"""The table and pictures of docs/pages/slow_networks.md: `python -m tests.support.slow_network_page`.

It trains the model of `make demo` by each method on two simulated nodes, which takes most of an hour;
`--draw` draws what was measured.  Losses do not depend on the network, seconds not on the seed.
"""

import json
import sys
from pathlib import Path

import numpy as np

from minipar.comm import Cluster
from minipar.comm.simulated.topology import Link, Links
from minipar.launcher import metered
from minipar.train.check import checked
from minipar.train.config import TrainConfig
from minipar.train.loop import take_step
from minipar.train.start import start_run
from minipar.train.tasks import make_task

RESULTS = Path("out/slow_networks.json")
STEPS, SEEDS, LAST = 150, (0, 1, 2), 20
WITHIN, BETWEEN, FLOPS = Link(5e-6, 1e10), Link(5e-4, 12.5e6), 1e12     # 100 Mbit/s between nodes
SGD = {"optimizer": "sgd", "momentum": 0.0, "clip": 0.0}
METHODS = {
    "DDP": {}, "PowerSGD, rank 4": {"reduce_dtype": "powersgd"},
    "top-k, 1 %": {"reduce_dtype": "top_k"}, "signs": {"reduce_dtype": "signs"},
    "TernGrad": {"reduce_dtype": "terngrad"},
    "local SGD, 8 steps": {"strategy": "local_sgd", "every": 8},
    "DiLoCo, 8 steps": {"strategy": "diloco", "every": 8},
    "gossip": {"strategy": "gossip"}, "elastic, 4 steps": {"strategy": "elastic", "every": 4},
    "DDP, SGD": {"optimizer": "sgd"},
    "DGC, 1 %": {"reduce_dtype": "dgc", "stage_steps": 5, "wire_clip": 2.0, "lr": 0.1, **SGD},
    "1-bit Adam": {"reduce_dtype": "onebit_adam", "beta2": 0.95, "lr": 1e-3, **SGD},
}


def run(options: dict, seed: int) -> dict[str, list[float]]:
    """Of each step: the loss, the virtual time of its end, and the bytes of rank 0 so far."""
    config = checked(TrainConfig().updated(mesh="dp=4", steps=STEPS, seed=seed, **options))
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


if __name__ == "__main__":
    if "--draw" not in sys.argv:
        measure([name for name in METHODS if name in sys.argv[1:]] or [*METHODS])
