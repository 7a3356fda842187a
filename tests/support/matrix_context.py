"""The composition matrix, context parallelism: every way of it over four ranks."""

from collections.abc import Iterator

from tests.support.cases import Case
from tests.support.cells import Matrix, Proven, Refused, no_sync_check, training_check

ROWS = {
    "ring": "ring attention, zig-zag order", "ring contiguous": "each rank one piece",
    "ring striped": "every fourth token", "all_gather": "keys and values gathered",
    "Ulysses": "tokens exchanged for heads, of which keys have two",
    "Ulysses in a ring": "on two ranks each, two rings between them",
}
FEATURES = {
    "accumulation": "three uneven microbatches are the one big batch",
    "dropout": "the masks of one process, whatever the layout",
    "Llama, clipping": "rotary positions, clipping, tied weights",
    "one target": "one valid target in the whole batch: the gradient of one token",
    "no_sync": "microbatches that only add up on their rank",
}


def cells() -> Iterator[tuple[tuple[str, str], Proven | Refused]]:
    """Every way of context parallelism over four ranks, which do not divide six tokens."""
    grouped = Case("gpt grouped", parts=(4, 3, 3))
    for name in ROWS:
        for feature, case in {
                "accumulation": grouped, "dropout": grouped._replace(model="llama"),
                "Llama, clipping": Case("llama", "adamw", max_norm=0.1),
                "one target": grouped._replace(mask="one in the whole batch")}.items():
            yield (name, feature), Proven(training_check(name, case))
        yield (name, "no_sync"), Proven(no_sync_check(name, "gpt grouped"))


CONTEXT = [Matrix("Context parallelism over four ranks", ROWS, FEATURES, dict(cells()))]
