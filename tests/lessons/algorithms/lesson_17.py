"""Lesson 17; `size` is the number of tokens of a rank."""

import numpy as np

from minipar.comm import Cluster, collectives
from minipar.nn import MoEConfig
from minipar.nn.moe import Router
from minipar.nn.moe.dispatch import dispatch, queue_places
from minipar.nn.step_context import training_step
from tests.lessons.algorithms import Case, matrix, says

E, D, TOKENS = 6, 8, (1, 7, 24)


def drawn(comm, n):
    """Tokens of this rank, and the weights of a router that all ranks have."""
    return (np.random.default_rng(comm.rank).standard_normal((n, D)),
            np.random.default_rng(9).standard_normal((D, E)))


def library_router(comm, n, **config):
    from minipar.autograd import Tensor
    x, weight = drawn(comm, n)
    router = Router(D, MoEConfig(E, **config)).initialize(0, np.float64)
    router.weight.data[...] = weight
    return router, router(Tensor(x))


def routed(comm, n):
    _, found = library_router(comm, n)
    return found.scores.data, found.ids, found.gates.data


def own_masks(masks, comm, n, names):
    _, ids, gates = names["route"](*drawn(comm, n), 2)
    return list(masks(ids, gates, E, n // 3 + 1))


def library_masks(comm, n):
    """The same, from the library's list of rows, sorted by expert."""
    _, found = library_router(comm, n)
    capacity, places = n // 3 + 1, queue_places(found.ids, n, "choice")
    plan = dispatch(found.ids, places < capacity, E)
    at = found.ids.ravel()[plan.choices] * capacity + places.ravel()[plan.choices]
    picks, gated = np.zeros((2, E * capacity, n))
    picks[at, plan.tokens] = 1
    gated[at, plan.tokens] = found.gates.data.ravel()[plan.choices]
    return [picks, gated]


def library_balance(comm, n):
    router, found = library_router(comm, n, balance_loss=1.0)
    with training_step(0, 0, range(1), shares=np.ones(1)) as step:
        return router.losses(found, 1, step).data


def own_send(send, comm, size, names):
    """Rows there, and the gradient of three times their squares / 2 back."""
    x = names["Tensor"](matrix(comm, size))
    y = send(x, comm)
    names["backward"](y, 3 * y.data)
    return [y.data, x.grad]


def library_send(comm, size):
    rows = matrix(comm, size)
    return [collectives.all_to_all(comm, rows), 3 * rows]


def own_moe(moe, comm, n, names):
    from support.lesson_17 import own_layer
    return own_layer(comm, moe, n)


def library_moe(comm, n):
    from support.lesson_17 import library_layer
    return library_layer(comm, n)


CASES = [
    Case("route", lambda route, comm, n, names: route(*drawn(comm, n), 2), routed, TOKENS, 1e-14),
    Case("masks", own_masks, library_masks, TOKENS, 1e-14),
    Case("balance_loss", lambda balance_loss, comm, n, names: balance_loss(
        *names["route"](*drawn(comm, n), 2)[:2]), library_balance, TOKENS, 1e-14),
    Case("all_to_all", lambda all_to_all, comm, n, names: all_to_all(comm, matrix(comm, n)),
         lambda comm, n: collectives.all_to_all(comm, matrix(comm, n))),
    Case("send", own_send, library_send),
    Case("moe", own_moe, library_moe, (1, 7, 12), 1e-13),
]


def check_change(names):
    """Outputs are right, gradients are wrong, but not on one rank; nothing raises."""
    from support.lesson_17 import library_layer, own_layer

    def body(comm):
        pairs = zip(own_layer(comm, names["moe"], 12), library_layer(comm, 12), strict=True)
        return [np.allclose(*pair) for pair in pairs]
    for p in (1, 2, 4):
        for output, of_x, of_expert in Cluster(p).run(body)[0]:
            assert output and of_x == of_expert == (p == 1)
    says("17", "The output is right, and so is the loss", "On one rank nothing changes")
