"""The ledger against the operating system: by how much the peak of a real rank's memory grows.

The ledger knows long-lived arrays and saved activations; the system also counts temporaries inside
operations, message buffers and the allocator's slack.  Printed with `pytest -rP`.
"""

import ctypes
import gc
import re
from pathlib import Path

import pytest

from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW
from minipar.testing import worlds
from tests.support.cases import ALL
from tests.support.measured_step import step

CONFIG = GPTConfig(1000, context=64, num_layers=6, num_heads=8, width=512)      # 19 million
PROC = Path("/proc/self")


def status(field: str) -> int:
    """VmRSS (resident now) or VmHWM (the most so far) in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", (PROC / "status").read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not (PROC / "clear_refs").exists()
                    or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="Linux with glibc")
@worlds(mpi=(2,))
@pytest.mark.parametrize("name", ["ddp", "zero1", "zero2", "fsdp"])
def test_the_ledger_is_what_the_system_sees(world, name):
    def body(comm):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)        # what earlier tests freed is not there any more
        before, ledger = status("VmRSS"), Ledger()
        with ledger.recording():
            strategy = ALL[name](GPT(CONFIG).initialize(0), comm)
            optimizer = AdamW(strategy.slabs)
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            ledger.forget_peaks()
            (PROC / "clear_refs").write_text("5")           # VmHWM starts again
            for _ in range(2):
                step(comm, strategy, optimizer, rows=4)
        system = status("VmHWM") - before
        print(f"{name}, rank {comm.rank}: ledger {ledger.peak / 1e6:.0f} MB, "
              f"system {system / 1e6:.0f} MB, ratio {system / ledger.peak:.3f}")
        assert ledger.peak > 1e8
        assert 0.95 < system / ledger.peak < 1.25
    world.run(body)
