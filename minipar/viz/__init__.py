"""Pictures of values: traces, losses, graphs, histories of memory.  They change nothing.

    timeline        bars, timeline, timeline_terminal            when each rank computed, sent
    of a trace      space_time, perfetto                         messages as arrows; ui.perfetto.dev
    collectives     rounds, rounds_picture, rounds_page          which chunk is where, in each round
                    permutations, rank_traffic, mesh_traffic     who sends how much to whom
                    crossovers                                   which is fastest at which size
    pipelines       pipeline, pipeline_terminal, schedule_page   a schedule's timetable
    memory          memory_timeline, remat_*, offload_timeline   live bytes over a step
    tensors         autograd_graph, sharded_pair, stacked_bars   what is saved, sharded, sent
    numbers         number_line, precision, error_feedback, quantization_grids
    compression     pruning_masks, pareto, soft_targets
    training        loss, device_limits
    all of them     figure, colors

`draw_…` writes a picture and returns its path; `write_…` writes another file; `…_in_terminal`
returns text.
"""

from .autograd_graph import draw_autograd_graph
from .bars import Bar, side_by_side, timeline_bars
from .crossovers import CostCurves, draw_crossovers
from .device_limits import Requirement, draw_device_limits
from .error_feedback import draw_error_feedback
from .loss import draw_loss, draw_losses
from .memory_timeline import MemoryStep, draw_memory_timeline, live_levels, phase_starts
from .number_line import draw_number_lines
from .perfetto import write_perfetto
from .permutations import draw_permutations
from .pipeline import draw_pipeline
from .pipeline_terminal import pipeline_in_terminal
from .precision import draw_precision
from .rank_traffic import draw_rank_traffic
from .rounds import Rounds, record_rounds
from .rounds_page import write_rounds_page
from .rounds_picture import draw_rounds
from .schedule_page import write_schedule_page
from .sharded_pair import draw_sharded_pair
from .soft_targets import draw_soft_targets
from .space_time import TracedRun, Wait, draw_space_time, waits_of
from .stacked_bars import draw_stacked_bars
from .timeline import draw_timeline, draw_timelines
from .timeline_terminal import timeline_in_terminal

__all__ = ["Bar", "CostCurves", "MemoryStep", "Requirement", "Rounds", "TracedRun", "Wait",
           "draw_autograd_graph", "draw_crossovers", "draw_device_limits", "draw_error_feedback",
           "draw_loss", "draw_losses", "draw_memory_timeline", "draw_number_lines",
           "draw_permutations", "draw_pipeline", "draw_precision", "draw_rank_traffic",
           "draw_rounds", "draw_sharded_pair", "draw_soft_targets", "draw_space_time",
           "draw_stacked_bars", "draw_timeline", "draw_timelines", "live_levels", "phase_starts",
           "pipeline_in_terminal", "record_rounds", "side_by_side", "timeline_bars",
           "timeline_in_terminal", "waits_of", "write_perfetto", "write_rounds_page",
           "write_schedule_page"]
