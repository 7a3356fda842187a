"""Pictures.  They read values (traces, losses, graphs) and change nothing; lessons and the CLI call
them, nothing else does."""

from .bars import Bar, lanes, side_by_side
from .crossover import Curves, draw_crossovers
from .curves import draw_loss, draw_losses
from .feedback import draw_feedback
from .memory import MemoryStep, draw_memory, levels, phases_of
from .number_line import draw_number_lines
from .perfetto import write_perfetto
from .permutations import draw_permutations
from .pipeline import draw_pipeline
from .pipeline_terminal import pipeline_in_terminal
from .precision import draw_precision
from .rounds import Rounds, record_rounds
from .rounds_picture import draw_rounds
from .schedule_page import write_schedule_page
from .sharded import draw_pair
from .softened import draw_softened
from .space_time import Run, Wait, draw_space_time, waits_of
from .stacked import draw_stacked
from .steps import write_steps
from .tape import draw_tape
from .terminal import draw_in_terminal
from .timeline import draw_timeline, draw_timelines
from .traffic import draw_traffic
from .wall import Need, draw_wall

__all__ = ["Bar", "Curves", "MemoryStep", "Need", "Rounds", "Run", "Wait", "draw_crossovers",
           "draw_feedback", "draw_in_terminal", "draw_loss", "draw_losses", "draw_memory",
           "draw_number_lines", "draw_pair", "draw_permutations", "draw_pipeline", "draw_precision",
           "draw_rounds", "draw_softened", "draw_space_time", "draw_stacked", "draw_tape",
           "draw_timeline", "draw_timelines", "draw_traffic", "draw_wall", "lanes", "levels",
           "phases_of", "pipeline_in_terminal", "record_rounds", "side_by_side", "waits_of",
           "write_perfetto", "write_schedule_page", "write_steps"]
