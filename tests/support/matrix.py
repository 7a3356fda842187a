"""The composition matrix: what goes with what.  Cells are tests, and the page is made of them.

`test_matrix.py` runs every cell on simulated and on real ranks.  `python -m tests.support.matrix`
writes docs/pages/composition.md.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minipar.atomic_files import replace_file
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.parallel.registry import STRATEGIES as BY_NAME
from tests.support.cases import ONE_PROCESS, Case, check
from tests.support.cells import Matrix, Proven, Refused, no_sync_check, training_check
from tests.support.matrix_context import CONTEXT
from tests.support.matrix_experts import EXPERTS
from tests.support.matrix_memory import MEMORY
from tests.support.matrix_offload import OFFLOAD
from tests.support.matrix_precision import PRECISION
from tests.support.matrix_quantized import QUANTIZED
from tests.support.picky import check_picky

PAGE = Path(__file__).parents[2] / "docs" / "pages" / "composition.md"


def picky_check(name: str, apart: bool) -> Callable[[Any], None]:
    """Ranks use different weights in one step."""
    return lambda world: check_picky(world, name, apart)


STRATEGIES = {
    **{name: BY_NAME[name].title for name in ONE_PROCESS},
    "fsdp kept": "the same with reshard_after_forward=False",
    "fsdp hybrid": "the same, sharded over two ranks, replicated over the others",
}
FEATURES = {
    "accumulation": "three uneven microbatches are the one big batch",
    "tied weights": "a GPT's head shares the weights of its embedding",
    "clipping": "by the global norm, the same on every rank",
    "dropout": "the masks of one process, whatever the layout",
    "no_sync": "microbatches that only add up on their rank",
    "unused parameter": "different ranks use different weights of one block in one step",
    "unused block": "different ranks (of those that share shards) use different blocks in one step",
}
CASES = {
    "accumulation": Case("mlp", parts=(4, 3, 3)),
    "tied weights": Case("gpt tied", "adamw"),
    "clipping": Case("gpt untied", max_norm=0.1),
    "dropout": Case("gpt dropout"),
}
NO_ROOM = "keeps no whole gradient that could add up: it reduces after every backward; " \
          "leave no_sync() out"
OTHER_WEIGHTS = "used different weights than rank 0 in this step. Sharded weights are gathered " \
                "by all ranks together, so every rank must use the same ones in the same order. " \
                "Multiply an unwanted branch by 0, put both branches into one FSDP unit, or " \
                "shard no parameters."


def data_parallel_cells() -> Iterator[tuple[tuple[str, str], Proven | Refused]]:
    """Every strategy with every feature."""
    for name in STRATEGIES:
        for feature, case in CASES.items():
            yield (name, feature), Proven(training_check(name, case))
        no_sync = no_sync_check(name)
        cost = BY_NAME[name.split()[0]].cost
        is_refused = cost is not None and cost.reduces_each_microbatch
        yield (name, "no_sync"), Refused(no_sync, NO_ROOM) if is_refused else Proven(no_sync)
        for feature, apart in (("unused parameter", False), ("unused block", True)):
            picky = picky_check(name, apart)
            refused = name == "zero3" or apart and name.startswith("fsdp")
            yield (name, feature), Refused(picky, OTHER_WEIGHTS) if refused else Proven(picky)


SCHEDULES = {
    "naive": "NaiveModelParallel: one rank works, the others wait",
    **{name: f"Pipeline, {name}" for name in SCHEDULES},
}
PIPELINE_FEATURES = {
    "accumulation": "three uneven microbatches are the one big batch",
    "tied weights": "a GPT's head, on the last stage, shares the weights of its embedding",
    "clipping": "by the global norm, which counts a tied weight once",
    "no_sync": "batches that only add up on their rank",
}
PIPELINE_CASES = {
    "accumulation": Case("mlp deep", parts=(4, 3, 3)),
    "tied weights": Case("gpt deep tied", "adamw"),
    "clipping": Case("gpt deep untied", max_norm=0.1),
}


def pipeline_cells() -> Iterator[tuple[tuple[str, str], Proven | Refused]]:
    """Every schedule with every feature; the models have dropout."""
    for name in SCHEDULES:
        for feature, case in PIPELINE_CASES.items():
            yield (name, feature), Proven(training_check(name, case))
        yield (name, "no_sync"), Proven(
            lambda world, name=name: check(world, name, Case("gpt deep tied", parts=(2, 1, 2)),
                                           inside_no_sync=True))


CONTEXT_CASES = {"accumulation": Case("gpt untied", parts=(4, 3, 3))}     # an MLP has no tokens
EIGHT_TOKENS = {"model": "gpt long", "time": 8}         # tp 2 divides those of two ranks of cp
MESH_ROWS = {
    "pp 2 × dp 2": "a 1F1B pipeline on each half of the rows",
    "pp 2 × tp 2": "a 1F1B pipeline whose stages are tensor-parallel",
    "dp 2 × tp 2": "tensor parallelism on each half of the rows",
    "pp 2 × cp 2": "a 1F1B pipeline whose stages each spread the tokens over two ranks",
    "dp 2 × cp 2": "ring attention on each half of the rows",
    "cp 2 × tp 2": "ring attention with half of the heads on each rank",
}
MESH_FEATURES = {
    **{feature: FEATURES[feature] for feature in (*CASES, "no_sync")},
    "ZeRO-1": "optimizer states sharded over dp",
    "ZeRO-2": "gradients too, reduced for each microbatch",
    "ZeRO-3": "parameters too, each weight gathered by itself",
    "FSDP": "parameters gathered by unit, ahead of their use",
    "FSDP, no_sync": "microbatches that only add up on their rank",
    "sequence parallelism": "tokens split over tp between the pairs of layers",
}


def mesh_cells() -> Iterator[tuple[tuple[str, str], Proven | Refused]]:
    """Every pair of axes with every feature."""
    for mesh in MESH_ROWS:
        cases = CASES | CONTEXT_CASES if "cp" in mesh else CASES
        for feature, case in cases.items():
            yield (mesh, feature), Proven(training_check(mesh, case))
        model = cases["accumulation"].model
        yield (mesh, "no_sync"), Proven(no_sync_check(mesh, model))
        tied = Case("gpt tied", "adamw", parts=(4, 3, 3), max_norm=0.1)
        for feature, name in (("ZeRO-1", "zero1"), ("ZeRO-2", "zero2"), ("ZeRO-3", "zero3"),
                              ("FSDP", "fsdp")):
            yield (mesh, feature), Proven(training_check(f"{mesh} {name}", tied))
        yield (mesh, "FSDP, no_sync"), Refused(no_sync_check(f"{mesh} fsdp", model), NO_ROOM)
        sequence = training_check(f"{mesh} sequence", tied._replace(**EIGHT_TOKENS))
        yield (mesh, "sequence parallelism"), (
            Proven(sequence) if "tp" in mesh else
            Refused(sequence, "splits tokens over the ranks of tp, and here tp "
                    "has only one"))


MATRICES = [Matrix("Data parallelism", STRATEGIES, FEATURES, dict(data_parallel_cells())),
            Matrix("Pipelines", SCHEDULES, PIPELINE_FEATURES, dict(pipeline_cells())),
            Matrix("Two axes of a mesh", MESH_ROWS, MESH_FEATURES, dict(mesh_cells())),
            *CONTEXT, *EXPERTS, *MEMORY, *OFFLOAD, *PRECISION, *QUANTIZED]


def page() -> str:
    """The matrices in Markdown."""
    lines = ["# What goes with what", "",
             "Made of the tests by `python -m tests.support.matrix`.  **proven**: a test shows "
             "that the combination gives", "what one process gives, in float64 to 1e-10, on "
             "simulated and on real ranks.  *refused*: it raises an error, and",
             "a test reads its sentence.  An empty cell promises nothing.  (`make test-all` runs "
             "all of them, `make test` about a tenth,", "a part of them on real ranks.)  In the "
             "last table messages are rounded: there the error is that of rounding."]
    for matrix in MATRICES:
        refusals: list[str] = []
        lines += ["", f"## {matrix.title}", "", "| | " + " | ".join(matrix.columns) + " |",
                  "| --- " * (len(matrix.columns) + 1) + "|"]
        for row in matrix.rows:
            texts = [text_of(matrix.cells.get((row, column)), refusals)
                     for column in matrix.columns]
            lines.append(f"| {row} | " + " | ".join(texts) + " |")
        lines += ["", *(f"{i}. refused: \"… {sentence}\"." for i, sentence in
                        enumerate(refusals, 1)), ""]
        for kind, meanings in (("row", matrix.rows), ("column", matrix.columns)):
            explained = [f"| {name} | {text} |" for name, text in meanings.items() if text]
            lines += [f"| {kind} | meaning |", "| --- | --- |", *explained, ""] if explained else []
    return "\n".join(lines)


def text_of(cell: Proven | Refused | None, refusals: list[str]) -> str:
    """The page's entry for a cell; a new sentence is added to `refusals`."""
    if not isinstance(cell, Refused):
        return "**proven**" if cell else ""
    if cell.sentence not in refusals:
        refusals.append(cell.sentence)
    return f"*refused* ({refusals.index(cell.sentence) + 1})"


if __name__ == "__main__":
    replace_file(PAGE, lambda file: file.write(page().encode()))
    print(PAGE)
