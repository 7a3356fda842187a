"""The programs of the spine's five parts, and two steps of training.

    python -m tests.support.spine_programs NAME

    strategies      Part I on two simulated ranks: data parallelism, ZeRO, FSDP and tensor
                    parallelism train an MLP
    gpt             Part II on two simulated ranks: strategies train a GPT
    simulated       Part III: messages, collectives, split() and Works on the simulated cluster
    mpi             Part III: the same under mpirun
    inference       Part IV: an engine answers requests that share blocks and are preempted
    gspmd           Part V: an MLP is cut over dp × tp, as three annotations say
    zero1_step      the second step of ZeRO-1 with an MLP
    mesh_step       the second step of dp × tp × pp with a GPT

On rank 0 each prints JSON: the files of minipar that Python has loaded, and the functions that ran
after the imports, as "file: qualified name".
"""

import json
import sys
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
HERE = f"{ROOT / 'minipar'}/"
ran: set[str] = set()


def note(frame: Any, event: str, _: Any) -> None:
    """Remember which functions of minipar run; bodies of modules and classes are none."""
    code = frame.f_code
    if (event == "call" and code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(HERE)
            and not is_importing(frame)):
        ran.add(f"{Path(code.co_filename).relative_to(ROOT)}: {code.co_qualname}")


def is_importing(frame: Any) -> bool:
    """True if a module's body is under way, of which this is a part."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename != __file__:
            return True
        frame = frame.f_back
    return False


def noting(main: Callable) -> Callable:
    """`main`, on a rank whose greenlet remembers what it runs."""
    def run(comm):
        sys.setprofile(note)
        return main(comm)
    return run


def strategies() -> None:
    """Data parallelism, ZeRO-1 and ZeRO-2, FSDP and tensor parallelism of an MLP."""
    from minipar.comm import Cluster
    from minipar.comm.mesh import DeviceMesh
    from minipar.nn import MLP
    from minipar.nn.module import replace_module
    from minipar.optim import SGD
    from minipar.parallel.data.ddp import DistributedDataParallel
    from minipar.parallel.data.ddp_by_autograd import data_parallel
    from minipar.parallel.strategy import Microbatch
    from minipar.parallel.tensor.layers import TensorSplit, split_columns, split_rows
    from minipar.parallel.zero.fsdp import FullyShardedDataParallel
    from minipar.parallel.zero.zero1 import ZeRO1
    from minipar.parallel.zero.zero2 import ZeRO2

    x, labels, samples = np.ones((4, 6), np.float32), np.array([0, 1, 2, 0]), np.arange(4)

    def mlp() -> MLP:
        return MLP([6, 8, 8, 3]).initialize(0)

    def main(comm) -> None:
        mine = slice(2 * comm.rank, 2 * comm.rank + 2)
        data_parallel(model := mlp(), comm).loss(x[mine], labels[mine], 4).backward()
        SGD(model.slabs).step()

        for kind in DistributedDataParallel, ZeRO1, ZeRO2, FullyShardedDataParallel:
            strategy = kind(mlp(), DeviceMesh(comm, dp=2))
            optimizer = SGD(strategy.slabs)
            for _ in range(2):
                strategy.forward_backward([Microbatch(x[mine], labels[mine], samples[mine])] * 2)
                strategy.step(optimizer)
                optimizer.zero_grad()

        model, split = MLP([6, 8, 8, 3]), TensorSplit(comm)
        split_columns(model[2], split)
        replace_module(model, model[4], split_rows(model[4], split))
        model.initialize(0).loss(x, labels, 4).backward()
    Cluster(2, chooser=None, compare_calls=False).run(noting(main))


def gpt() -> None:
    """Data and tensor parallelism, and a pipeline, of a GPT."""
    from minipar.comm import Cluster
    from minipar.nn import GPT, GPTConfig
    from minipar.nn.step_context import training_step
    from minipar.optim import SGD
    from minipar.parallel.data.ddp import DistributedDataParallel
    from minipar.parallel.pipeline.one_f_one_b import OneFOneB
    from minipar.parallel.strategy import Microbatch
    from minipar.parallel.tensor.layers import (
        TensorSplit,
        split_attention,
        split_columns,
        split_rows,
    )

    config = GPTConfig(vocab_size=8, context=4, num_layers=2, num_heads=2, width=8)
    ids, samples = np.arange(16).reshape(4, 4) % 8, np.arange(4)

    def main(comm) -> None:
        mine = slice(2 * comm.rank, 2 * comm.rank + 2)
        ddp = DistributedDataParallel(GPT(config).initialize(0), comm)
        ddp.forward_backward([Microbatch(ids[mine], ids[mine], samples[mine])] * 2)
        ddp.step(SGD(ddp.slabs))

        model, split = GPT(config), TensorSplit(comm)
        for block in model.h:
            split_attention(block.attn, split)
            split_columns(block.mlp.c_fc, split)
            block.mlp.c_proj = split_rows(block.mlp.c_proj, split)
        model.initialize(0)
        with training_step(0, 0, samples):
            model.loss(ids, ids, 16).backward()

        pipeline = OneFOneB(GPT(config).initialize(0), comm, 8, cuts=[2])
        pipeline.forward_backward([Microbatch(ids[i:i + 2], ids[i:i + 2], samples[i:i + 2])
                                   for i in (0, 2)])
    Cluster(2, chooser=None, compare_calls=False).run(noting(main))


def note_second_step(strategy: Any, microbatches: list) -> None:
    """Train for two steps, and remember what the second one runs: the first one makes things."""
    from minipar.optim import SGD
    optimizer = SGD(strategy.slabs)
    for watch in None, note:
        sys.setprofile(watch)
        strategy.forward_backward(microbatches)
        strategy.step(optimizer)
        optimizer.zero_grad()
    sys.setprofile(None)


def zero1_step() -> None:
    """A step of ZeRO-1 with an MLP."""
    from minipar.comm import Cluster
    from minipar.nn import MLP
    from minipar.parallel.strategy import Microbatch
    from minipar.parallel.zero.zero1 import ZeRO1
    x, labels = np.ones((4, 6), np.float32), np.array([0, 1, 2, 0])
    Cluster(2, compare_calls=False).run(lambda comm: note_second_step(
        ZeRO1(MLP([6, 8, 3]).initialize(0), comm), [Microbatch(x, labels, np.arange(4))]))


def mesh_step() -> None:
    """A step of dp × tp × pp with a GPT."""
    from minipar.comm import Cluster
    from minipar.comm.mesh import DeviceMesh
    from minipar.nn import GPT, GPTConfig
    from minipar.parallel.data.ddp import DistributedDataParallel
    from minipar.parallel.strategy import Microbatch
    config = GPTConfig(vocab_size=8, context=4, num_layers=2, num_heads=2, width=8)
    ids = np.arange(8).reshape(2, 4) % 8
    Cluster(8, compare_calls=False).run(lambda comm: note_second_step(
        DistributedDataParallel(GPT(config).initialize(0), DeviceMesh(comm, dp=2, tp=2, pp=2)),
        [Microbatch(ids, ids, np.arange(2))] * 2))


def talk(comm) -> None:
    """Messages, rings, split() and a Work."""
    from minipar.comm.collectives import all_reduce
    from minipar.comm.work import start_work
    peer, out = 1 - comm.rank, np.empty(3)
    comm.sendrecv(np.ones(3), peer, out, peer)
    request = comm.irecv(out, peer)
    comm.isend(np.ones(3), peer).wait()
    request.wait()
    work = start_work(all_reduce, comm, np.ones(5))
    assert work.wait()[0] == comm.size
    row = comm.split(0, key=-comm.rank)
    assert all_reduce(row, np.ones(4), algorithm="ring")[0] == 2


def simulated() -> None:
    """Let two simulated ranks talk."""
    from minipar.comm import Cluster
    Cluster(2, chooser=None, compare_calls=False).run(noting(talk))


def mpi() -> int:
    """Let two real ranks talk; return this rank's number."""
    from mpi4py import MPI

    from minipar.comm.mpi.communicator import connect
    comm = connect(MPI.COMM_WORLD, MPI)
    noting(talk)(comm)
    return comm.rank


def inference() -> None:
    """Requests that begin alike, have several answers, and lack blocks; greedy and random."""
    from minipar.inference import Engine, ModelRunner, SamplingParams, SchedulerConfig
    from minipar.nn import GPT, GPTConfig

    model = GPT(GPTConfig(vocab_size=8, context=16, num_layers=2, num_heads=2, width=8))
    model.initialize(0)

    def main(_) -> None:
        for preempt_by in "recompute", "swap":
            config = SchedulerConfig(5, 4, token_budget=6, prefix_caching=True,
                                     preempt_by=preempt_by)
            engine = Engine(ModelRunner(model, 5, 4), config)
            for temperature in 0, 1:
                engine.submit([1, 2, 3, 4, 5], 8, SamplingParams(temperature))
            engine.run()
            engine.submit([1, 2, 3, 4, 5], 4, num_answers=2)
            engine.run()
            assert engine.metrics.num_preemptions and engine.scheduler.pool.num_copied
            assert engine.scheduler.tokens_hit
    noting(main)(None)


def gspmd() -> None:
    """Rule, propagation and partition of an MLP: the plan of every rank, made on none."""
    from minipar.gspmd import P, plan
    from minipar.nn import MLP

    def loss(model, x, labels):
        return model.loss(x, labels, 4)

    def main(_) -> None:
        made = plan(loss, np.ones((4, 6), np.float32), np.array([0, 1, 2, 0]),
                    model=MLP([6, 8, 8, 3]), names=["x", "labels"], mesh={"dp": 2, "tp": 2},
                    annotations={"x": P("dp"), "0.weight": P(None, "tp"),
                                 "4.weight": P("dp")})          # in conflict with x
        kinds = [each.kind for each in made.program.instructions]
        assert kinds.count("all-reduce") == 2       # partial sums over tp; the loss over dp
        assert kinds.count("all-gather") == 1       # of the weight, whose rows dp cuts
    noting(main)(None)


if __name__ == "__main__":
    programs = {"strategies": strategies, "gpt": gpt, "simulated": simulated, "mpi": mpi,
                "inference": inference, "gspmd": gspmd, "zero1_step": zero1_step,
                "mesh_step": mesh_step}
    rank = programs[sys.argv[1]]()
    sys.setprofile(None)
    loaded = {str(Path(module.__file__).relative_to(ROOT)) for name, module in sys.modules.items()
              if name.split(".")[0] == "minipar" and module.__file__}
    if not rank:
        print(json.dumps({"loaded": sorted(loaded), "ran": sorted(ran)}))
