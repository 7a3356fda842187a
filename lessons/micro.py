"""minipar in one file: backward, an MLP, the ring, four ways to train on p ranks.  Read it first.

    python lessons/micro.py    on four simulated ranks        mpirun -n 4 python lessons/micro.py

(You never saw MPI?  First docs/pages/mpi.md, two pages, and its program, hello_ranks.py.)

p processes run this whole file at once.  Each is a *rank*: comm.rank says which one I am, 0 … p-1,
and comm.size is p.  Each has its own memory, so the same name holds different values on different
ranks.  They meet only in *messages*, arrays that one rank sends and another receives:

    comm.send(a, dest)                    send a; may wait until rank dest receives it
    comm.recv(out, source)                wait for an array from rank source; write it into out
    comm.isend(a, dest)                   begin to send a, and go on; .wait() before a may change
    comm.sendrecv(a, dest, out, source)   send a and receive out at once: no rank has to wait first

A *collective* is a function that all ranks call, in the same order, to exchange arrays:

    rank 0 has a0 a1,   reduce_scatter:  rank 0 gets a0+b0            the sum, a piece for each
    rank 1 has b0 b1    all_gather:      all get all pieces           of one piece from each
                        all_reduce:      all get a0+b0 a1+b1          the sum, all of it

A way to train is a choice: what does each rank hold, and which collectives make the rest?

                       a rank's weights      its rows         messages
    data_parallel      all                   1/p              all-reduce of each gradient
    zero3              1/p of each           1/p              all-gather of a weight at each use,
                                                              reduce-scatter of its gradient
    tensor_parallel    1/p of each           all              all-reduce of activations,
                                                              and of their gradients
    one_f_one_b        1/p of the layers     all, in parts    activations to the next rank,
                                                              their gradients back

Every one computes the gradients that one process would.  The loss is a sum over rows divided by the
number of rows of *all* ranks, so gradients of parts only have to be added.
"""

import numpy as np

from minipar.launcher import launch

# ---- Backward ------------------------------------------------------------------------------------


class Tensor:
    """An array, the tensors it came from, and `pull`, which turns its gradient into theirs.

    `grad` adds up over all uses of the tensor; that of a weight also over several backwards.
    """

    def __init__(self, data, inputs=(), pull=lambda grad: ()):
        self.data, self.inputs, self.pull, self.grad = data, inputs, pull, 0.0


def in_order(tensor, order):
    """Add the tensor and everything that it came from to a dict, each after its inputs."""
    if tensor not in order:
        for each in tensor.inputs:
            in_order(each, order)
        order[tensor] = len(order)          # a dict keeps this order
    return order


def backward(root, grad=1.0):
    """Add to .grad of everything that root came from.  `grad` is the gradient of root itself."""
    root.grad = grad
    for tensor in reversed(in_order(root, {})):     # all that was made of it came before
        for each, g in zip(tensor.inputs, tensor.pull(tensor.grad)):
            each.grad = each.grad + g


# ---- An MLP: each operation has its result, and what backward makes of the result's gradient g ---


def linear(x, w):
    """The product x w of x (rows, in) and w (in, out)."""
    return Tensor(x.data @ w.data, (x, w), lambda g: (g @ w.data.T, x.data.T @ g))


def relu(x):
    """Each number, or 0 if it is negative."""
    return Tensor(np.maximum(x.data, 0), (x,), lambda g: (g * (x.data > 0),))


def cross_entropy(x, labels, num_rows):
    """-log of the probability of the right label, summed over rows, divided by num_rows."""
    probs = np.exp(x.data - x.data.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    right = np.eye(probs.shape[1])[labels]
    loss = -np.log((probs * right).sum(1)).sum() / num_rows
    return Tensor(loss, (x,), lambda g: (g * (probs - right) / num_rows,))


def mlp(x, weights, layer=linear):
    """The layers, one after the other, with a relu between two."""
    for i, w in enumerate(weights):
        x = layer(relu(x) if i else x, w)
    return x


# ---- The ring: in each round every rank sends one piece, 1/p of the array, to its right neighbour.
# Piece 0 of ranks a, b, c: rank 1 sends b0, rank 2 adds c0 and sends, rank 0 adds a0: the sum.
# An index such as r - i may be negative: -1 is the last piece.  A rank's number needs "% p".


def reduce_scatter(comm, flat):
    """Piece r of the sum of all ranks' `flat`.  p - 1 rounds: add mine to what comes, pass on."""
    p, r = comm.size, comm.rank
    sums = [piece.copy() for piece in np.array_split(flat, p)]
    for i in range(1, p):                   # piece r - 1 leaves first; r comes last, complete
        arrived = np.empty_like(sums[r - i - 1])
        comm.sendrecv(sums[r - i], (r + 1) % p, arrived, (r - 1) % p)
        sums[r - i - 1] += arrived
    return sums[r]


def all_gather(comm, piece, size):
    """All ranks' pieces, `size` numbers in all.  p - 1 rounds: pass on what came last."""
    p, r = comm.size, comm.rank
    whole = np.empty(size, piece.dtype)
    pieces = np.array_split(whole, p)       # views: what is written into them is in `whole`
    pieces[r][:] = piece
    for i in range(p - 1):
        comm.sendrecv(pieces[r - i], (r + 1) % p, pieces[r - i - 1], (r - 1) % p)
    return whole


def all_reduce(comm, x):
    """The sum of all ranks' x: first each rank sums one piece, then all get all pieces."""
    flat = x.reshape(-1)
    return all_gather(comm, reduce_scatter(comm, flat), flat.size).reshape(x.shape)


# ---- Operations that send.  What must backward send, if forward sends this? ----------------------


def copy_to(x, comm):
    """One x, used by all ranks.  All have it: send nothing.  Backward: the p gradients add up."""
    return Tensor(x.data, (x,), lambda g: (all_reduce(comm, g),))


def reduce_from(x, comm):
    """The sum of the ranks' x.  Backward: every part has the gradient of the sum; send nothing."""
    return Tensor(all_reduce(comm, x.data), (x,), lambda g: (g,))


def sharded_linear(x, shard, comm, shape):
    """x w; each rank keeps a shard of w, 1/p.  The whole w lives during one product only."""
    def whole():
        return all_gather(comm, shard.data, np.prod(shape)).reshape(shape)
    return Tensor(x.data @ whole(), (x, shard), lambda g: (
        g @ whole().T, reduce_scatter(comm, (x.data.T @ g).reshape(-1))))


# ---- One process, and four ways to train on p.  Each returns this rank's gradients. --------------


def one_process(weights, x, labels):
    """The gradients that every other way must equal."""
    ws = [Tensor(w) for w in weights]
    backward(cross_entropy(mlp(Tensor(x), ws), labels, len(x)))
    return [w.grad for w in ws]


def part(comm, array, axis=0):
    """This rank's 1/p of an array."""
    return np.array_split(array, comm.size, axis)[comm.rank]


def data_parallel(comm, weights, x, labels):
    """All weights, 1/p of the rows."""
    ws = [Tensor(w) for w in weights]
    out = mlp(Tensor(part(comm, x)), [copy_to(w, comm) for w in ws])
    backward(cross_entropy(out, part(comm, labels), len(x)))
    return [w.grad for w in ws]


def zero3(comm, weights, x, labels):
    """1/p of each weight, 1/p of the rows."""
    shards = [Tensor(part(comm, w.reshape(-1))) for w in weights]
    out = mlp(Tensor(part(comm, x)), shards,
              lambda h, shard: sharded_linear(h, shard, comm, weights[0].shape))
    backward(cross_entropy(out, part(comm, labels), len(x)))
    return [shard.grad for shard in shards]


def tensor_parallel(comm, weights, x, labels):
    """1/p of the columns of one weight, 1/p of the rows of the next; all rows of x."""
    ws = [Tensor(part(comm, w, axis=1 - i % 2)) for i, w in enumerate(weights)]
    h = Tensor(x)
    for i in range(0, len(ws), 2):          # my columns of one product are what my rows multiply
        h = copy_to(relu(h) if i else h, comm)
        h = reduce_from(linear(relu(linear(h, ws[i])), ws[i + 1]), comm)
    backward(cross_entropy(h, labels, len(x)))
    return [w.grad for w in ws]


def one_f_one_b(comm, weights, x, labels, m=4):
    """1/p of the layers, all rows in m microbatches: one forward, one backward, in turn."""
    p, r = comm.size, comm.rank
    ws = [Tensor(w) for w in part(comm, weights)]
    xs, ys, in_flight, sends = np.array_split(x, m), np.array_split(labels, m), {}, []

    def forward(i):
        h = Tensor(xs[i] if r == 0 else np.empty_like(xs[i]))
        if r > 0:
            comm.recv(h.data, r - 1)
        out = mlp(relu(h) if r > 0 else h, ws)
        if r < p - 1:                       # isend: a send would wait for a rank that waits for me
            sends.append(comm.isend(out.data, r + 1))
        else:
            out = cross_entropy(out, ys[i], len(x))
        in_flight[i] = h, out

    def backward_of(i):
        h, out = in_flight.pop(i)
        grad = 1.0 if r == p - 1 else np.empty_like(out.data)
        if r < p - 1:
            comm.recv(grad, r + 1)
        backward(out, grad)
        if r > 0:
            sends.append(comm.isend(h.grad, r - 1))
    ahead = min(p - r - 1, m)               # forwards until my first gradient can be back
    for i in range(m + ahead):
        if i < m:
            forward(i)
        if i >= ahead:
            backward_of(i - ahead)
    for request in sends:
        request.wait()
    return [w.grad for w in ws]


def main(comm):
    """Compare each way to train with one process."""
    rng = np.random.default_rng(0)
    weights, x, labels = rng.normal(0, .5, (8, 8, 8)), rng.random((14, 8)), rng.integers(0, 8, 14)
    alone = one_process(weights, x, labels)
    mine = {data_parallel: alone, zero3: [part(comm, grad.reshape(-1)) for grad in alone],
            tensor_parallel: [part(comm, g, axis=1 - i % 2) for i, g in enumerate(alone)],
            one_f_one_b: part(comm, alone)}
    for way, expected in mine.items():
        for found, right in zip(way(comm, weights, x, labels), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-14, err_msg=way.__name__)
        if comm.rank == 0:
            print(f"{way.__name__} on {comm.size} ranks: the gradients of one process")


if __name__ == "__main__":
    launch(main)
