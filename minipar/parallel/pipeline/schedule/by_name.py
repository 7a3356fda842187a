"""Schedules by the names that a command line takes, with the placement of their stages."""

from collections.abc import Callable

from .schedules import (
    Placement,
    Schedule,
    gpipe,
    in_a_loop,
    in_a_v,
    interleaved,
    looped_breadth_first,
    one_f_one_b,
)
from .zero_bubble import zb_h1, zb_v

ONE_STAGE: dict[str, Callable[..., Schedule]] = {       # on each rank
    "gpipe": gpipe, "1f1b": one_f_one_b, "zb_h1": zb_h1}
SEVERAL: dict[str, Callable[..., Schedule]] = {
    "interleaved": interleaved, "looped_breadth_first": looped_breadth_first}
NAMES = ("gpipe", "1f1b", "interleaved", "looped_breadth_first", "zb_h1", "zb_v")
SPLIT_BACKWARD = ("zb_h1", "zb_v")      # with I and W instead of B


def make_schedule(name: str, num_ranks: int, num_microbatches: int,
                  virtual_stages: int | None = None,
                  group_size: int | None = None) -> tuple[Schedule, Placement]:
    """The schedule of that name, and the rank of each of its stages.

    `virtual_stages` is how many stages each rank has (2 where a schedule takes several, else 1);
    `group_size` is for "interleaved" alone.  Raises ValueError for what does not exist.
    """
    if name not in NAMES:
        raise ValueError(f"unknown schedule {name!r}: choose from {', '.join(NAMES)}")
    if group_size is not None and name != "interleaved":
        raise ValueError(f"{name} has no groups of microbatches: only interleaved takes their size")
    if name in SEVERAL:
        v = 2 if virtual_stages is None else virtual_stages
        more = {} if group_size is None else {"group_size": group_size}
        return SEVERAL[name](num_ranks, num_microbatches, v, **more), in_a_loop(num_ranks, v)
    v = 2 if name == "zb_v" else 1
    if virtual_stages not in (None, v):
        raise ValueError(f"{name} has {v} stage{'s' * (v > 1)} on each rank, not {virtual_stages}: "
                         f"{' and '.join(SEVERAL)} take any number")
    if name == "zb_v":
        return zb_v(num_ranks, num_microbatches), in_a_v(num_ranks)
    return ONE_STAGE[name](num_ranks, num_microbatches), in_a_loop(num_ranks)
