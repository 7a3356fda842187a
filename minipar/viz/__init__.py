"""Pictures of traces, collectives, schedules, graphs, memory and losses; drawing changes nothing.

    timeline        bars, timeline, timeline_terminal            when each rank computed, sent
    of a trace      space_time, perfetto                         messages as arrows; ui.perfetto.dev
    collectives     rounds, rounds_picture, rounds_page          which chunk is where, in each round
                    permutations, rank_traffic, mesh_traffic     who sends how much to whom
                    crossovers                                   which is fastest at which size
    pipelines       pipeline, pipeline_terminal, schedule_page   a schedule's timetable
    memory          memory_timeline                              live bytes over a step
                    remat_steps, remat_tradeoff                  what recomputation saves and costs
    tensors         autograd_graph, sharded_pair, stacked_bars   what is saved, sharded, sent
                    sharded_program                              GSPMD: what is cut along what
                    ring_attention                               which pairs each rank computes
    numbers         precision, quantization_grids
    inference       block_pool, load_curve                       who has which block; waiting
                    request_timeline                             when a request waits, gets tokens
    compression     pruning_masks, pareto, soft_targets
    experts         token_flow, expert_loads                     who computes which tokens
    training        loss, device_limits, milestone
    all of them     figure, colors; page, the skeleton of pages

`draw_…` writes a picture and returns its path; `write_…` writes another file; `…_in_terminal`
returns text.  A name is imported on its first use: `from minipar import viz` loads no matplotlib.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "autograd_graph": ("draw_autograd_graph", "graph_nodes"),
    "block_pool": ("draw_block_pool", "uses_of_blocks"),
    "bars": ("Bar", "side_by_side", "timeline_bars"),
    "crossovers": ("CostCurves", "draw_crossovers"),
    "device_limits": ("Requirement", "draw_device_limits"),
    "expert_loads": ("draw_expert_loads",),
    "load_curve": ("draw_load_curve",),
    "loss": ("draw_loss",),
    "memory_timeline": ("MemoryStep", "draw_memory_timeline", "live_levels", "phase_starts"),
    "mesh_traffic": ("MeshTraffic", "draw_mesh_traffic"),
    "milestone": ("MilestoneRun", "draw_milestone"),
    "pareto": ("ParetoPanel", "draw_pareto"),
    "perfetto": ("write_perfetto",),
    "permutations": ("draw_permutations",),
    "pipeline": ("draw_pipeline", "draw_pipelines"),
    "pipeline_terminal": ("pipeline_in_terminal",),
    "precision": ("draw_precision",),
    "pruning_masks": ("PrunedModel", "draw_pruning_masks"),
    "quantization_grids": ("GridPanel", "draw_quantization_grids"),
    "rank_traffic": ("draw_rank_traffic",),
    "remat_tradeoff": ("draw_remat_tradeoff",),
    "request_timeline": ("draw_request_timeline",),
    "ring_attention": ("draw_ring_attention",),
    "rounds": ("Rounds", "record_rounds"),
    "rounds_page": ("write_rounds_page",),
    "rounds_picture": ("draw_rounds",),
    "schedule_page": ("write_schedule_page",),
    "sharded_program": ("draw_sharded_program",),
    "sharded_pair": ("draw_sharded_pair",),
    "soft_targets": ("draw_soft_targets",),
    "space_time": ("TracedRun", "Wait", "draw_space_time", "waits_of"),
    "stacked_bars": ("draw_stacked_bars",),
    "timeline": ("draw_timeline", "draw_timelines"),
    "timeline_terminal": ("timeline_in_terminal",),
    "token_flow": ("draw_token_flow",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Import a public name on its first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
