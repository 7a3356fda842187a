"""Base of the strategies that are a pipeline: PipeDream, 2BW and TeraPipe.

Their mesh has pp alone, and their schedule is their own.
"""

from typing import Any

from ...comm import Communicator
from ...comm.mesh import DeviceMesh
from ...nn import Module
from ..errors import pipeline_only_error
from ..strategy import Strategy
from .executor import RankBatch


class PipelineOnly(Strategy):
    """Runs the stages by `schedule`; a subclass says how a rank works on a batch (`batch_type`)."""

    schedule = "1f1b"
    batch_type: type[RankBatch]

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, **options: Any):
        is_pipeline = isinstance(ranks, DeviceMesh) and ranks.shape.get("pp") == ranks.comm.size
        if not is_pipeline or options.get("schedule") not in (None, self.schedule):
            raise pipeline_only_error(type(self).__name__, self.schedule)
        super().__init__(model, ranks, **options | {"schedule": self.schedule})
        assert self.pipeline is not None
        self.pipeline.batch_type = self.batch_type
