"""Random programs and small GPTs with random annotations, on random meshes.

They compute what one device computes; all bytes that are sent are planned; propagation ends.
"""

import signal

import pytest

from .random_models import check_model
from .random_programs import check, random_case

CHUNK = 20


@pytest.fixture(autouse=True)
def _ends():
    """Interrupt what does not end."""
    signal.alarm(120)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("start", [*range(0, 300, CHUNK), *[
    pytest.param(start, marks=pytest.mark.slow) for start in range(300, 3300, CHUNK)]])
@pytest.mark.one_in(3)
def test_random_programs(start):
    for seed in range(start, start + CHUNK):
        program, arrays, planned = random_case(seed)
        check(program.mesh, planned, program, arrays, (seed, program))


@pytest.mark.parametrize("start", [0, *[pytest.param(start, marks=pytest.mark.slow)
                                        for start in range(CHUNK, 400, CHUNK)]])
def test_random_models(start):
    for seed in range(start, start + CHUNK):
        check_model(seed)
