"""`minipar replay FILE.json`: what the scheduler does with scripted requests, step by step.

    minipar replay scenario.json                        steps and summary, as JSON
    minipar replay scenario.json --draw pool.png        and the blocks over time
    minipar replay scenario.json --static               and how many steps static batches take

    {"engine": {"num_blocks": 7, "block_size": 4, "preempt_by": "swap"},
     "requests": [{"name": "A", "arrival_step": 0, "prompt": [1, 2, 3, 4, 5], "outputs": [[7, 8]]},
                  {"name": "B", "arrival_step": 1, "prompt": [1, 2, 3], "outputs": [[9], [6]]}]}

No model runs: `outputs` are the tokens that it would have drawn, one list for each answer.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ... import viz
from ...inference.scheduling.scripted_requests import play, read_scenario
from ...launcher import UsageError, errors_as_usage
from ...train.option import REQUIRED, CommandOptions, option, out_file
from ..tables import Output


def main(options: "Options", output: Output) -> None:
    """Print steps and summary as JSON.  Raises UsageError for a file that is no scenario."""
    document = read_json(options.file)
    with errors_as_usage(f"{options.file}: "):
        scenario = read_scenario(document)
    found = {"engine": document["engine"], "requests": document["requests"], **play(scenario)}
    if options.static:
        if scenario.config.max_requests is None:
            raise UsageError(f'{options.file}: --static needs "max_requests" in "engine": the '
                             "size of a batch")
        static = replace(scenario, config=replace(scenario.config, policy="static"))
        found["static_batches"] = {"steps": play(static)["summary"]["steps"]}
    if options.draw is not None and not found["steps"]:
        raise UsageError(f"{options.file}: every request was refused, so there is nothing to "
                         "draw: leave out --draw")
    output.console.quiet = True         # the document is all that goes to stdout
    output.file(options.draw, viz.draw_block_pool, found["steps"], scenario.config.num_blocks,
                scenario.config.block_size, str(document.get("what", options.file.stem)))
    output.document(as_text(found))


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    file: Path = option(REQUIRED, 'engine settings and requests: {"engine": {…}, "requests": […]}',
                        metavar="FILE.json", is_positional=True)
    draw: Path | None = out_file("draw the blocks over time (.png, .svg or .pdf)")
    static: bool = option(False, "also count the steps of static batches of max_requests requests")


def read_json(path: Path) -> Any:
    """The document in a JSON file.  Raises UsageError for a file that is no JSON."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(document, ensure_ascii=False).encode()       # it is printed: no half characters
        return document
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}") from error


def as_text(document: dict[str, Any]) -> str:
    """A document as JSON, one line for each step and request."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list):
            rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in value)
            lines.append(f' "{key}": [\n{rows}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value, ensure_ascii=False)}')
    return "{\n" + ",\n".join(lines) + "\n}"
