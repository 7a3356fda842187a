"""The data of a page that calculates time and memory of a layout: calculator.html.

The page evaluates the syntax trees of this package's functions (export.py).
"""

import tomllib
from pathlib import Path
from typing import Any

from .cluster import FOLDER, ClusterSpec, from_file
from .export import Exporter
from .layout import KINDS, PREDICTED, REMATS, Layout, layout_fault
from .memory import memory, total
from .models import KNOWN, known_models, model_flops, model_of, num_parameters
from .reasons import parts
from .time.stalls import stall_range

PAGE = Path(__file__).with_name("calculator.html")
TITLE = "Time and memory of a training step"
FUNCTIONS = (layout_fault, memory, total, model_flops, model_of, num_parameters, parts, stall_range,
             Layout)
START = {"model": "llama3-8b", "cluster": "h100/nanotron", "nodes": 4, "per_node": 8,
         "batch": 256, "dp": 8, "tp": 4, "kind": "zero1"}


def page_data() -> dict[str, Any]:
    """The data of the page: the functions with all that they need, its choices and first values."""
    exporter = Exporter()
    functions = {function.__name__: exporter.add(function) for function in FUNCTIONS}
    clusters = {name: exporter.value(cluster) for name, cluster in all_clusters().items()}
    choices = {"model": [*known_models()], "cluster": [*clusters], "kind": KINDS,
               "schedule": PREDICTED, "remat": REMATS}
    sizes = [size for size in KNOWN if size != "rope_base"]     # which changes no prediction
    return {"modules": exporter.finish(), "functions": functions, "clusters": clusters,
            "models": known_models(), "sizes": sizes, "choices": choices, "start": START}


def all_clusters() -> dict[str, ClusterSpec]:
    """By "GPU/software": each GPU with the software of its file, and of the file it is `like`."""
    made = {}
    for path in sorted(FOLDER.glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        base = FOLDER / f"{table.get('like', path.stem)}.toml"
        programs = tomllib.loads(base.read_text(encoding="utf-8")).get("software", {})
        for name in programs | table.get("software", {}):
            made[f"{path.stem}/{name}"] = from_file(path, name)
    return made
