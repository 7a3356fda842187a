"""The tables of docs/pages/memory.md: `python -m tests.support.memory_page` writes them."""

from collections.abc import Iterator
from pathlib import Path

from minipar.atomic_files import replace_file
from minipar.memory.ledger import Ledger
from minipar.memory.temporaries import StepLedger
from minipar.nn import GPTConfig
from minipar.parallel.cost.activations import PARALLEL, REMAT, layer_activations
from tests.support.step_peaks import WAYS, peaks_of

PAGE = Path(__file__).parents[2] / "docs" / "pages" / "memory.md"
CONFIG = GPTConfig(51200, context=2048, num_layers=48, num_heads=64, width=6144, dropout=0.1)
BATCH, TP = 4, 8
WHOLE = BATCH * CONFIG.context * CONFIG.width
SCORES = CONFIG.num_heads * CONFIG.context / CONFIG.width
# What the paper counts for each, in bytes, and why minipar differs.
PAPER = {
    "norms": (4, "normalized rows here, the norm's input there; and a scale for each row"),
    "taken by column layers": (4, ""),
    "q, k, v": (6, ""),
    "probabilities": (2 * SCORES, "here without most of the half that causal attention cannot see"),
    "their dropout mask": (3 * SCORES, "the mask of one byte; there also the probabilities after "
                                       "it, here a multiplication away"),
    "taken by row layers": (10, ""),
    "slope of gelu": (8, "the slope here, the input there: the same size, and no tanh in backward"),
    "dropout masks": (2, ""),
}


def paper_layer_bytes(config: GPTConfig, batch: int, tp: int = 1, parallel: str = "tensor",
                      remat: str = "none") -> float:
    """A layer's bytes in fp16, with dropout: Korthikanti et al. 2022, table 2 (s b h = b t d)."""
    whole = batch * config.context * config.width
    attention = 5 * config.num_heads * config.context / config.width
    if remat == "full":
        return 2 * whole if parallel == "tensor" else 2 * whole / tp
    rest = 10 + 24 / tp if parallel == "tensor" else 34 / tp
    return whole * (rest + (0 if remat == "selective" else attention / tp))


def layers() -> Iterator[str]:
    """Megabytes of a layer by kind of parallelism and of rematerialization."""
    yield "| ranks | `--remat` | minipar, float32 | the same in 2 bytes | paper, fp16 |"
    yield "| --- | --- | --- | --- | --- |"
    for tp, parallel in [(1, PARALLEL[0]), *[(TP, parallel) for parallel in PARALLEL]]:
        for remat in REMAT:
            ours = [sum(layer_activations(CONFIG, BATCH, tp, parallel, remat, size).values())
                    for size in (4, 2)]
            paper = paper_layer_bytes(CONFIG, BATCH, tp, parallel, remat)
            name = "1" if tp == 1 else f"{tp}, {parallel}"
            numbers = " | ".join(f"{size / 1e6:,.0f} MB" for size in (*ours, paper))
            yield f"| {name} | {remat} | {numbers} |"


def parts() -> Iterator[str]:
    """The bytes that one layer keeps on one rank, by kind of array."""
    yield "| kept | minipar | paper | why |"
    yield "| --- | --- | --- | --- |"
    for name, size in layer_activations(CONFIG, BATCH, itemsize=2).items():
        paper, reason = PAPER[name]
        yield f"| {name} | {size / WHOLE:.2f} | {paper:.2f} | {reason} |"


def peaks() -> Iterator[str]:
    """The peak of a step, in megabytes, with temporaries and without, and what each way saves."""
    yield "| | kept, at the peak | with temporaries | saves of what is kept | saves of the step |"
    yield "| --- | --- | --- | --- | --- |"
    (whole, _), (kept, _) = (peaks_of("float32", kind) for kind in (StepLedger, Ledger))
    for way in WAYS:
        (peak, _), (less, _) = (peaks_of(way, kind) for kind in (StepLedger, Ledger))
        saves = [f"{1 - part / of:.0%}" for part, of in ((less, kept), (peak, whole))]
        name = way.replace("full", "`--remat full`")
        yield (f"| {name} | {less / 1e6:.1f} MB | {peak / 1e6:.1f} MB | "
               + ("| |" if way == "float32" else " | ".join(saves) + " |"))


def page() -> str:
    """The page with its tables recomputed."""
    text = PAGE.read_text()
    for name, lines in (("layers", layers()), ("parts", parts()), ("peaks", peaks())):
        before, rest = text.split(f"<!-- {name} -->\n")
        text = "\n".join([before + f"<!-- {name} -->\n", *lines, "", rest[rest.index("<!-- end"):]])
    return text


if __name__ == "__main__":
    replace_file(PAGE, lambda file: file.write(page().encode()))
    print(PAGE)
