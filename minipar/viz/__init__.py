"""Pictures of traces, collectives, schedules, graphs, memory and losses; drawing changes nothing.

    lanes           bars                                     a trace as plain data
                    lanes                                    the base of all that follow
                    timeline, space_time                     when each rank computed, sent, waited
                    pipeline                                 a schedule's timetable
                    memory_timeline, remat                   live bytes; recomputation
                    requests                                 who waits, gets tokens, has which block
                    terminal                                 timelines as text
    curves          curves                                   losses, costs, loads, limits
                    points                                   quality against cost
                    distributions                            numbers and what formats keep of them
                    traffic                                  who sends how much, to whom
    grids           rounds, rounds_picture                   which chunk is where, in each round
                    ring_attention                           which pairs each rank computes
                    sharded_pair, sharded_program            what is cut over which ranks
                    autograd_graph                           what is saved for backward
                    experts                                  who computes which tokens
    other files     rounds_page, schedule_page, perfetto     for browsers
    all of them     figure, colors; page, the skeleton of pages

`draw_…` writes a picture and returns its path; `write_…` writes another file; `…_in_terminal`
returns text.  A name is imported on its first use: `from minipar import viz` loads no matplotlib.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "autograd_graph": ("draw_autograd_graph", "graph_nodes"),
    "bars": ("Bar", "TracedRun", "Wait", "side_by_side", "timeline_bars", "waits_of"),
    "curves": ("CostCurves", "MilestoneRun", "Requirement", "draw_crossovers",
               "draw_device_limits", "draw_load_curve", "draw_loss", "draw_milestone"),
    "distributions": ("GridPanel", "draw_difference", "draw_precision", "draw_quantization_grids",
                      "draw_soft_targets"),
    "experts": ("draw_expert_loads", "draw_token_flow"),
    "memory_timeline": ("MemoryStep", "draw_memory_timeline", "live_levels", "phase_starts"),
    "perfetto": ("write_perfetto",),
    "pipeline": ("draw_pipeline", "draw_pipelines"),
    "points": ("ParetoPanel", "PrunedModel", "draw_choices", "draw_pareto", "draw_pruning_masks"),
    "remat": ("draw_remat_tradeoff",),
    "requests": ("draw_block_pool", "draw_request_timeline", "uses_of_blocks"),
    "ring_attention": ("draw_ring_attention",),
    "rounds": ("Rounds", "record_rounds"),
    "rounds_page": ("write_rounds_page",),
    "rounds_picture": ("draw_permutations", "draw_rounds"),
    "schedule_page": ("write_schedule_page",),
    "sharded_program": ("draw_sharded_program",),
    "sharded_pair": ("draw_sharded_pair",),
    "space_time": ("draw_space_time",),
    "terminal": ("pipeline_in_terminal", "timeline_in_terminal"),
    "timeline": ("draw_timeline", "draw_timelines"),
    "traffic": ("MeshTraffic", "draw_mesh_traffic", "draw_rank_map", "draw_rank_traffic",
                "draw_stacked_bars"),
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
