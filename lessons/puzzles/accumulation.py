"""ZeRO-2 with two microbatches trains as if it had seen half of the batch."""

from minipar.parallel.zero.zero2 import ZeRO2


class Mine(ZeRO2):
    """ZeRO-2: each microbatch's gradient is reduced; a rank keeps its piece."""

    def add_to_piece(self, flat, reduced):
        piece = self.piece_of[flat]
        piece.grad[...] = reduced
        piece.has_grad = True
