"""One training step of a GPT on a GPU: minipar on CuPy, minipar on the CPU, PyTorch on the GPU.

    GPT step        4 layers, width 256, 8 × 128 tokens: the GPU waits for Python, op by op
    GPT-2 small     124 M parameters, 4 × 256 tokens: products take longer than Python

Forward, backward and AdamW in float32 (PyTorch without TF32), eager, one stream.  A step ends with
the loss on the host, so that all that the GPU was given is done by then.
"""

from collections.abc import Iterator

import numpy as np

from minipar.backend import Array, asarray_like
from minipar.nn import GPT, GPTConfig

from . import gpt, gpt2_small
from .timing import Row, check_same, interleave, medians, milliseconds


def measure(num_rounds: int) -> Iterator[Row]:
    """Yield the rows; one that says what is missing, without CuPy or a GPU."""
    try:
        import cupy
    except ImportError:
        yield Row("GPT step on a GPU", "needs CuPy: pip install '.[cuda]'")
        return
    if not cupy.is_available():
        yield Row("GPT step on a GPU", "needs a CUDA GPU: CuPy finds none")
        return
    device = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    for what, config, batch in (("GPT step", gpt.CONFIG, gpt.BATCH),
                                ("GPT-2 small", gpt2_small.CONFIG, gpt2_small.BATCH)):
        yield from measure_model(f"{what}, {device}", config, batch, num_rounds, cupy.empty(0))


def measure_model(what: str, config: GPTConfig, batch: int, num_rounds: int, on_gpu: Array
                  ) -> Iterator[Row]:
    """Yield the rows of one model: on the GPU against PyTorch there, and against the CPU."""
    ids, targets = gpt.make_batch(batch, config)
    steps = {}
    for name, array in (("CPU", np.empty(0)), ("GPU", on_gpu)):
        model = GPT(config).initialize(0, np.float32, array)
        steps[name] = gpt.make_step(model, *(asarray_like(x, array) for x in (ids, targets)))
    steps |= gpt.torch_steps(model.state_dict(), ids, targets, config, device="cuda")
    check_same(what, steps)
    cpu = medians(interleave({"CPU": steps.pop("CPU")}, max(2, num_rounds // 5), num_warmup=1))
    seconds = medians(interleave(steps, 4 * num_rounds))
    ours = seconds["GPU"]
    said = f"{milliseconds(ours)}, {ids.size / ours:,.0f} tokens/s"
    yield Row(what, said, f"CPU, one thread {milliseconds(cpu['CPU'])}",
              cpu["CPU"] / ours)
    if "PyTorch" in seconds:
        theirs = seconds["PyTorch"]
        yield Row("  against PyTorch there", milliseconds(ours),
                  f"PyTorch {milliseconds(theirs)}", theirs / ours)

