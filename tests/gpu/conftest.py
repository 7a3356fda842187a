"""Every test of this folder needs CuPy and a CUDA GPU: `make test-gpu` runs them."""

from pathlib import Path

import numpy as np
import pytest

HERE = str(Path(__file__).parent)


def pytest_collection_modifyitems(items: list) -> None:
    """Mark them all, so that the other targets leave them out."""
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def cupy():
    """The module; without it, or without a GPU, the test is skipped."""
    module = pytest.importorskip("cupy", reason="CuPy is not installed: pip install '.[cuda]'")
    if not module.is_available():
        pytest.skip("CuPy finds no CUDA GPU")
    return module


@pytest.fixture
def on_device(cupy):
    """A function that copies a host array to the GPU."""
    return lambda array: cupy.asarray(np.array(array))
