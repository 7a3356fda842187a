"""Pictures of traces, collectives, schedules, graphs, memory and losses; drawing changes nothing.

    timelines/      lanes of ranks, requests and bytes
    plots/          losses, costs, quality, distributions, traffic
    grids/          chunks in rounds, blocks of attention, shards, experts
    pages/          for browsers
    figure, colors  what all pictures share

`draw_…` writes a picture and returns its path; `write_…` writes another file; `…_in_terminal`
returns text.  A name is imported on its first use: `from minipar import viz` loads no matplotlib.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "timelines.bars": ("Bar", "EndlessWait", "TracedRun", "side_by_side", "timeline_bars",
                       "waits_of"),
    "timelines.memory_timeline": ("MemoryStep", "draw_memory_timeline", "live_levels",
                                  "phase_starts"),
    "timelines.pipeline": ("draw_pipeline", "draw_pipelines"),
    "timelines.remat": ("draw_remat_tradeoff",),
    "timelines.requests": ("draw_block_pool", "draw_request_timeline", "uses_of_blocks"),
    "timelines.space_time": ("draw_space_time",),
    "timelines.terminal": ("pipeline_in_terminal", "timeline_in_terminal"),
    "timelines.timeline": ("draw_timeline", "draw_timelines"),
    "plots.curves": ("CostCurves", "MilestoneRun", "Requirement", "draw_crossovers",
                     "draw_device_limits", "draw_load_curve", "draw_loss", "draw_milestone"),
    "plots.distributions": ("GridPanel", "draw_difference", "draw_precision",
                            "draw_quantization_grids", "draw_soft_targets"),
    "plots.points": ("CostedRun", "ParetoPanel", "PrunedModel", "draw_choices",
                     "draw_loss_by_cost", "draw_pareto", "draw_pruning_masks",
                     "draw_sparse_or_dense"),
    "plots.traffic": ("MeshTraffic", "draw_mesh_traffic", "draw_rank_map", "draw_rank_traffic",
                      "draw_stacked_bars"),
    "grids.autograd_graph": ("draw_autograd_graph", "graph_nodes"),
    "grids.experts": ("draw_expert_loads", "draw_token_flow"),
    "grids.ring_attention": ("draw_ring_attention",),
    "grids.rounds": ("Rounds", "record_rounds"),
    "grids.rounds_picture": ("draw_permutations", "draw_rounds"),
    "grids.sharded_pair": ("draw_sharded_pair",),
    "grids.sharded_program": ("draw_sharded_program",),
    "pages.perfetto": ("write_perfetto",),
    "pages.rounds_page": ("write_rounds_page",),
    "pages.schedule_page": ("write_schedule_page",),
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
