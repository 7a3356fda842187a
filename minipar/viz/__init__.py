"""Pictures of traces, collectives, schedules, graphs, memory and losses; drawing changes nothing.

    lanes           bars, timeline, timeline_terminal            when each rank computed, sent
                    space_time, perfetto                         messages as arrows; ui.perfetto.dev
                    pipeline, pipeline_terminal, schedule_page   a schedule's timetable
                    memory_timeline                              live bytes over a step
                    remat_steps, remat_tradeoff                  what recomputation saves and costs
                    request_timeline, block_pool                 who waits, gets tokens, has a block
    curves          curves                                       losses, costs, loads, limits
                    points                                       quality against cost
                    distributions                                numbers and what formats keep
                    traffic                                      who sends how much, to whom
    grids           rounds, rounds_picture, rounds_page          which chunk is where, in each round
                    permutations                                 who sends to whom in each round
                    ring_attention                               which pairs each rank computes
                    sharded_pair, sharded_program                what is cut over which ranks
                    autograd_graph                               what is saved for backward
                    token_flow, expert_loads                     who computes which tokens
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
    "curves": ("CostCurves", "MilestoneRun", "Requirement", "draw_crossovers",
               "draw_device_limits", "draw_load_curve", "draw_loss", "draw_milestone"),
    "distributions": ("GridPanel", "draw_precision", "draw_quantization_grids",
                      "draw_soft_targets"),
    "expert_loads": ("draw_expert_loads",),
    "memory_timeline": ("MemoryStep", "draw_memory_timeline", "live_levels", "phase_starts"),
    "perfetto": ("write_perfetto",),
    "permutations": ("draw_permutations",),
    "pipeline": ("draw_pipeline", "draw_pipelines"),
    "pipeline_terminal": ("pipeline_in_terminal",),
    "remat_tradeoff": ("draw_remat_tradeoff",),
    "points": ("ParetoPanel", "PrunedModel", "draw_pareto", "draw_pruning_masks"),
    "request_timeline": ("draw_request_timeline",),
    "ring_attention": ("draw_ring_attention",),
    "rounds": ("Rounds", "record_rounds"),
    "rounds_page": ("write_rounds_page",),
    "rounds_picture": ("draw_rounds",),
    "schedule_page": ("write_schedule_page",),
    "sharded_program": ("draw_sharded_program",),
    "sharded_pair": ("draw_sharded_pair",),
    "space_time": ("TracedRun", "Wait", "draw_space_time", "waits_of"),
    "timeline": ("draw_timeline", "draw_timelines"),
    "timeline_terminal": ("timeline_in_terminal",),
    "token_flow": ("draw_token_flow",),
    "traffic": ("MeshTraffic", "draw_mesh_traffic", "draw_rank_traffic", "draw_stacked_bars"),
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
