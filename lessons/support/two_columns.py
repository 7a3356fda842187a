"""Lesson 11: a small network with AlexNet's layout, two columns of channels on two devices.

    image ─┬─▶ conv1 ─▶ conv2 ─┬─▶ conv3 ─▶ fc ─┐
           │                    ╳ both columns    Σ ─▶ logits
           └─▶ conv1 ─▶ conv2 ─┴─▶ conv3 ─▶ fc ─┘

The columns exchange data in two places only: each conv3 sees the channels of both columns, and the
logits are the sum of both columns' logits.  AlexNet has three fully-connected layers, and its
columns exchange data in each of them: a neuron there sees the whole layer before (Krizhevsky,
Sutskever & Hinton 2012, section 3.5).
"""

from minipar import autograd as ag
from minipar.autograd import Tensor
from minipar.backend import Array
from minipar.comm import Communicator
from minipar.nn import Linear, Module
from minipar.nn.chain import ChainPart, chain
from minipar.nn.convolution import Conv2d
from minipar.parallel.conjugate import all_gather, reduce_from

SIZE, CHANNELS, CLASSES = 16, 8, 10         # of images, of a layer in one column
MEETING = (6, 6, CHANNELS)                  # shape of a column's activation after conv2
CHANNEL = 3                                 # the axis of (b, h, w, c)


class Column(Module):
    """Half of the network."""

    def __init__(self):
        super().__init__()
        self.conv1 = Conv2d(3, CHANNELS, 3)                         # (14, 14, c)
        self.conv2 = Conv2d(CHANNELS, CHANNELS, 3, stride=2)        # (6, 6, c)
        self.conv3 = Conv2d(2 * CHANNELS, CHANNELS, 3)              # (4, 4, c)
        self.fc = Linear(16 * CHANNELS, CLASSES, bias=False)

    def before(self, images: Array) -> Tensor:
        """The layers before the exchange."""
        return ag.relu(self.conv2(ag.relu(self.conv1(Tensor(images)))))

    def after(self, both: Tensor) -> Tensor:
        """This column's summand of the logits."""
        return self.fc(ag.relu(self.conv3(both)).reshape((both.shape[0], -1)))


class TwoColumns(Module):
    """images (b, 16, 16, 3) → logits (b, 10), both columns on one device."""

    def __init__(self):
        super().__init__()
        self.columns = [Column(), Column()]

    def before(self, images: Array) -> Tensor:
        """The layers of both columns before the exchange."""
        return ag.concatenate([column.before(images) for column in self.columns], CHANNEL)

    def after(self, both: Tensor) -> Tensor:
        """The logits."""
        first, second = self.columns
        return first.after(both) + second.after(both)

    def criterion(self, logits: Tensor, labels: Array, loss_divisor: float | None = None) -> Tensor:
        """Cross-entropy, summed and divided by `loss_divisor`."""
        return ag.cross_entropy(logits, labels, loss_divisor)

    def loss(self, images: Array, labels: Array, loss_divisor: float | None = None) -> Tensor:
        """The loss of a batch of images."""
        return self.criterion(self.after(self.before(images)), labels, loss_divisor)


@chain.register
def _(model: TwoColumns) -> list[ChainPart]:
    """Two parts for stages: the layers before the exchange, and those after it."""
    return [ChainPart("before", model.before,
                 [layer for column in model.columns for layer in (column.conv1, column.conv2)]),
            ChainPart("after", model.after,
                 [layer for column in model.columns for layer in (column.conv3, column.fc)])]


def loss_in_columns(model: TwoColumns, images: Array, labels: Array, loss_divisor: float,
                    comm: Communicator) -> Tensor:
    """The same loss with column r on rank r of two; both ranks get it."""
    column = model.columns[comm.rank]
    both = all_gather(column.before(images), comm, CHANNEL)
    return model.criterion(reduce_from(column.after(both), comm), labels, loss_divisor)
