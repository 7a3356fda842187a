"""`minipar replay FILE.json`: what the scheduler does with scripted requests, step by step.

    minipar replay scenario.json                        steps and summary, as JSON
    minipar replay scenario.json --draw pool.png        and the blocks over time
    minipar replay scenario.json --static               and how many steps static batches take

    {"engine": {"num_blocks": 7, "block_size": 4, "preempt_by": "swap"},
     "requests": [{"name": "A", "arrival_step": 0, "prompt": [1, 2, 3, 4, 5], "outputs": [[7, 8]]},
                  {"name": "B", "arrival_step": 1, "prompt": [1, 2, 3], "outputs": [[9], [6]]}]}

No model runs: `outputs` are the tokens that it would have drawn, one list for each answer.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import viz
from ...inference.scheduling.scripted_requests import play, read_scenario
from ...launcher import UsageError
from ..tables import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("file", type=Path, metavar="FILE.json",
                        help='engine settings and requests: {"engine": {…}, "requests": […]}')
    parser.add_argument("--draw", type=Path, metavar="PICTURE",
                        help="draw the blocks over time (.png, .svg or .pdf)")
    parser.add_argument("--static", action="store_true",
                        help="also count the steps of static batches of max_requests requests")


def main(options: argparse.Namespace, output: Output) -> None:
    """Print steps and summary as JSON.  Raises UsageError for a file that is no scenario."""
    try:
        _replay(options, output)
    except (ValueError, OSError) as error:
        raise UsageError.of(error) from error


def _replay(options: argparse.Namespace, output: Output) -> None:
    document = _read(options.file)
    try:
        scenario = read_scenario(document)
    except ValueError as error:
        raise ValueError(f"{options.file}: {error}") from error
    found = {"engine": document["engine"], "requests": document["requests"], **play(scenario)}
    if options.static:
        if scenario.config.max_requests is None:
            raise ValueError(f'{options.file}: --static needs "max_requests" in "engine": the '
                             "size of a batch")
        static = replace(scenario, config=replace(scenario.config, policy="static"))
        found["static_batches"] = {"steps": play(static)["summary"]["steps"]}
    if options.draw is not None:
        if not found["steps"]:
            raise ValueError(f"{options.file}: every request was refused, so there is nothing to "
                             "draw: leave out --draw")
        title = str(document.get("what", options.file.stem))
        viz.draw_block_pool(options.draw, found["steps"], scenario.config.num_blocks,
                            scenario.config.block_size, title)
    output.document(as_text(found))


def _read(path: Path) -> Any:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(document, ensure_ascii=False).encode()       # it is printed: no half characters
        return document
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error


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
