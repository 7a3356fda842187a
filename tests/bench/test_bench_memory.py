"""The measurement of what less memory costs: every option trains, and keeps less."""

from minipar.nn import GPTConfig
from tests.bench import memory

SMALL = GPTConfig(vocab_size=17, context=64, num_layers=4, num_heads=2, width=64, tied=False)


def test_every_option_keeps_less(monkeypatch):
    monkeypatch.setattr(memory, "CONFIG", SMALL)
    rows = memory.measure(1)
    peaks = {row.what: float(row.ours.split("peak ")[1].split()[0]) for row in rows}
    none = peaks.pop("GPT step, none")
    assert len(peaks) == 9 and all(0 < peak < none for peak in peaks.values())
