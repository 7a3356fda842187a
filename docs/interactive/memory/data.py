"""Memory of a rank: parameters of some GPTs, and bytes of their activations."""

from typing import Any

from minipar.nn import GPT, GPTConfig
from minipar.parallel.cost.activations import PARALLEL, REMAT, layer_activations

MODELS = {"GPT-2 small": (12, 768, 12, 1024), "GPT-2 XL": (48, 1600, 25, 1024),
          "7 billion": (32, 4096, 32, 4096), "70 billion": (80, 8192, 64, 4096)}
WORDS = 50257
TENSOR = (1, 2, 4, 8)
ITEMSIZE = 4


def data() -> dict[str, Any]:
    """Models by name: parameters, layers, context, and bytes of activations[tp][parallel][remat].

    Activations are those of one layer and one sequence, on each of tp ranks.
    """
    models = {}
    for name, (layers, width, heads, context) in MODELS.items():
        config = GPTConfig(WORDS, context, layers, num_heads=heads, width=width)
        kept = {tp: {parallel: {remat: sum(layer_activations(
            config, 1, tp, parallel, remat, ITEMSIZE).values()) for remat in REMAT}
            for parallel in PARALLEL} for tp in TENSOR if heads % tp == 0}
        models[name] = {"parameters": GPT(config).num_parameters(), "layers": layers,
                        "context": context, "activations": kept}
    return {"models": models, "itemsize": ITEMSIZE, "parallel": list(PARALLEL),
            "remat": list(REMAT), "optimizers": {"AdamW": 2, "SGD with momentum": 1, "SGD": 0},
            "devices": [24, 80, 141]}
