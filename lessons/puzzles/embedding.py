"""The first and the last of two stages share the embedding.  Its gradient is wrong."""

from minipar.comm.collectives import all_reduce
from minipar.parallel.data.ddp import DistributedDataParallel


class Mine(DistributedDataParallel):
    """DDP in a pipeline: the stages that share a weight add up its gradient."""

    def finish(self):
        super().finish()
        for stages, gradient in self.shared_gradients():
            all_reduce(stages, gradient, out=gradient)
