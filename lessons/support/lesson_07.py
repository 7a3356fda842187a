"""Lesson 07: the library's DataParallel and DDP with a GPT; the GIL, growing clusters, picture."""

import numpy as np

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import all_gather, chunk_bounds
from minipar.comm.trace import Trace
from minipar.environment import in_browser
from minipar.launcher import simulate
from minipar.nn import GPT, GPTConfig
from minipar.optim import SGD
from minipar.parallel.cost.data_parallel import bytes_per_step, data_parallel_bytes
from minipar.parallel.data.classic_data_parallel import DataParallel
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.viz import draw_rank_traffic

from .kept_trace import stop_trace
from .kit import Lesson, Row
from .measuring import thread_slowdown, total
from .observed_step import RingWire
from .plain_mlp import mlp_of

CONFIG = GPTConfig(vocab_size=32, context=8, num_layers=2, num_heads=2, width=32)
MANY = (2, 4, 8, 16)            # ranks of the simulated clusters
# A device of theirs computes 20 GFLOP/s and sends 2 GB/s.
DEVICE = {"flops_per_second": 2e10, "bandwidth": 2e9, "latency": 2e-6}
# DDP reduces gradients on a ring, so that their bytes are easy to predict.
STRATEGIES = {"DataParallel": DataParallel,
              "DDP": lambda model, comm: DistributedDataParallel(model, comm, wire=RingWire())}


def train(comm: Communicator, make, num_rows: int, num_steps: int = 3):
    """Losses of some steps, the parameters after them, this rank's trace of the last step."""
    strategy = make(GPT(CONFIG).initialize(seed=0, dtype=np.float64), comm)
    optimizer, draw, losses = SGD(strategy.slabs, lr=0.1), np.random.default_rng(0), []
    for step in range(num_steps):
        ids = draw.integers(0, CONFIG.vocab_size, (num_rows, CONFIG.context + 1))
        targets = np.where(draw.random((num_rows, CONFIG.context)) < 0.3, -100, ids[:, 1:])
        mine, first_sample = np.array(strategy.rows(num_rows), int), step * num_rows
        if step == num_steps - 1:
            comm.start_trace()
        optimizer.zero_grad()
        batch = Microbatch(ids[mine, :-1], targets[mine], first_sample + mine)
        losses.append(strategy.forward_backward([batch], step=step))
        strategy.step(optimizer)
    trace = stop_trace(comm)
    return losses, strategy.state_dict(), trace


def loads(comm: Communicator, trace: Trace) -> np.ndarray:
    """Bytes sent and received by each rank together, known to all."""
    sent = [sum(m.num_bytes for m in trace.select() if m.source == comm.world_rank
                and m.dest == dest) for dest in range(comm.size)]
    table = all_gather(comm, np.array(sent)).reshape(comm.size, comm.size)
    return table.sum(axis=0) + table.sum(axis=1)


def predict(p: int, num_rows: int) -> tuple[dict[str, int], int]:
    """Bytes of each exchange of DataParallel, and bytes of a ring all-reduce, over all ranks."""
    tokens = [(stop - start) * CONFIG.context for start, stop in chunk_bounds(num_rows, p)]
    n = GPT(CONFIG).num_parameters()
    sent = data_parallel_bytes(n, [8 * count for count in tokens],
                               [8 * count * CONFIG.vocab_size for count in tokens], p, itemsize=8)
    return ({label: sum(by_rank) for label, by_rank in sent.items()},
            sum(bytes_per_step("ddp", [n], p, itemsize=8)))


def grow(lesson: Lesson) -> dict[str, dict[int, tuple[int, int]]]:
    """Time and traffic of a step on 32 samples, on larger and larger simulated clusters."""
    growth, rows, alone = {name: {} for name in STRATEGIES}, [], {}
    for p in (1, *MANY):
        cells = []
        for name, make in STRATEGIES.items():
            def one_step(comm: Communicator, make=make):
                *_, trace = train(comm, make, 32, num_steps=1)
                return loads(comm, trace).max(), trace.duration()
            results, _ = simulate(one_step, Cluster(p, **DEVICE))
            seconds = max(duration for _, duration in results)
            alone.setdefault(name, seconds)
            cells += [f"{seconds * 1e3:.2f} ms", f"{alone[name] / seconds:.2f}"]
            exchanges, ring_bytes = predict(p, 32)
            if p > 1:
                busiest = sum(exchanges.values()) if name == "DataParallel" else 2 * ring_bytes // p
                growth[name][p] = busiest, int(results[0][0])
        rows.append((f"{p} rank{'s' * (p > 1)}", *cells))
    lesson.say("One step on 32 samples, in simulated time: a device computes 20 GFLOP/s, a link "
               "carries 2 GB/s.")
    lesson.grid(["simulated", "DataParallel", "speed-up", "DDP", "speed-up"], rows)
    lesson.table([Row(f"{name}, {p} ranks: bytes through the busiest rank",
                      *growth[name][p], "B") for name in STRATEGIES for p in (MANY[0], MANY[-1])])
    return growth


def share_an_interpreter(lesson: Lesson) -> None:
    """Time two threads of one process that both run Python."""
    if not in_browser():                # which has no threads
        lesson.table([Row("2 threads that each run the same loop: seconds ÷ those of 1", 2.0,
                          thread_slowdown(lambda: sum(i for i in range(200_000))), rule="≈")],
                     "one process, one GIL: two threads take turns")
    lesson.say("NumPy releases the GIL during large products, so threads can drive devices that "
               "get long operations. But launching each operation is Python, and there the threads "
               "wait for each other.")


def compare_with_one_process(lesson: Lesson, num_rows: int) -> dict[str, list[int]]:
    """Compare values with one process and bytes with formulas; return bytes through each rank."""
    comm, p = lesson.comm, lesson.comm.size
    losses, parameters, _ = train(comm.split(comm.rank), Strategy, num_rows)
    exchanges, ring_bytes = predict(p, num_rows)
    predicted = {"DataParallel": exchanges, "DDP": {"all_reduce": ring_bytes}}
    through, rows, counts = {}, [], []
    for name, make in STRATEGIES.items():
        own_losses, own, trace = train(comm, make, num_rows)
        error = max(np.max(np.abs(own[key] - parameters[key])) for key in own)
        rows += [Row(f"{name} − one process: losses", 1e-12,
                     max(abs(a - b) for a, b in zip(losses, own_losses)), rule="≤"),
                 Row(f"{name} − one process: parameters after 3 steps", 1e-12, error, rule="≤")]
        through[name] = loads(comm, trace).tolist()
        counts += [Row(f"{name}: {label.replace('_', '-')}, all ranks", size,
                       total(comm, trace.bytes_sent(label=label)), "B")
                   for label, size in predicted[name].items()]
    n = 8 * GPT(CONFIG).num_parameters()
    rows += [Row("DataParallel, through rank 0: 2 (p−1) n + samples",
                 sum(exchanges.values()), through["DataParallel"][0], "B"),
             Row("DDP, through any rank: 4 n (p−1)/p, on average", 4 * n * (p - 1) / p,
                 sum(through["DDP"]) / p, "B")]
    lesson.table(rows, f"{num_rows} samples on p = {p} ranks, n = {n:,} bytes of parameters")
    lesson.counts(counts, "Bytes of each exchange")
    return through


def compare_with_library(lesson: Lesson, weights: np.ndarray, x: np.ndarray, labels: np.ndarray,
                         found: list) -> None:
    """Compare `found`, the gradients by DDP; train a GPT by both; grow the cluster."""
    comm = lesson.comm
    lesson.say("The library's strategies have the five exchanges, or the one, of any model. With "
               "DDP, the same MLP and samples:")
    lesson.table([Row("difference from the lesson's gradients", 1e-14, np.abs(np.array(
        library_gradients(comm, "DDP", weights, x, labels)) - np.array(found)).max(), "", "≤")])
    lesson.say("And three steps of a GPT, uneven batches, whose targets do not all count:")
    through = compare_with_one_process(lesson, len(x))
    if comm.rank == 0:
        share_an_interpreter(lesson)
        growth = grow(lesson)
        lesson.picture(lambda path: draw_rank_traffic(
            path, through, "DataParallel sends all through rank 0, DDP equally much through every "
                           "rank", growth))


def library_gradients(comm: Communicator, name: str, weights: np.ndarray, x: np.ndarray,
                      labels: np.ndarray) -> list[np.ndarray] | None:
    """The gradients by a strategy, from all rows; None on ranks that have none."""
    model = mlp_of(weights)
    strategy = STRATEGIES[name](model, comm)
    mine = np.array(strategy.rows(len(x)), int)
    strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
    if model[0].weight.grad is None:
        return None
    return [model[2 * i].weight.grad for i in range(len(weights))]
