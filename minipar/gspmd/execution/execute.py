"""Execution: each rank runs the local program on its pieces.

    executable = Executable(program, mesh)          once: functions, options and communicators
    outputs = executable(pieces)                    in every step; backward() as of any Tensors

Each instruction becomes a call of a Function.  That of a collective is one of a conjugate pair
(`parallel/conjugate.py`).  Between instructions, pieces are without padding:
collectives, and lookups in a cut vocabulary, add it for themselves.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...autograd import Tensor
from ...backend import asarray_like
from ...comm import Communicator
from ...comm.mesh import DeviceMesh
from ..partitioning.program import Instruction, Local, LocalProgram
from ..shard_map import ShardMap
from ..spec import Axes, index_along, num_pieces, piece_bounds
from .collectives import COLLECTIVES, Permute, PieceExchange, sections_order
from .local_call import WORDS, local_call
from .padding import pad, pad_to, strip

Run = Callable[..., Tensor]


class Executable:
    """A local program, bound to this rank's place in a mesh.  Its construction is collective."""

    def __init__(self, program: LocalProgram, mesh: DeviceMesh):
        if dict(mesh.shape) != dict(program.shardings.mesh):
            raise ValueError(f"the program is partitioned for the mesh "
                             f"{dict(program.shardings.mesh)}, not for {dict(mesh.shape)}: "
                             "partition it again")
        self.program, self.mesh = program, mesh
        self.coordinates = mesh.coordinates_of(mesh.comm.rank)
        self._comms: dict[Axes, Communicator] = {}
        places: dict[Local, int] = {}
        for local in (*program.inputs.values(), *program.constants):
            places[local] = len(places)
        last_use: dict[int, int] = {}
        self._steps: list[tuple[Run, list[Any], int, list[int]]] = []
        for number, instruction in enumerate(program.instructions):
            inputs = [ValueIndex(places[x]) if isinstance(x, Local) else x
                      for x in instruction.inputs]
            places[instruction.result] = len(places)
            self._steps.append((self.bind(instruction), inputs, places[instruction.result], []))
            last_use |= {x.index: number for x in inputs if isinstance(x, ValueIndex)}
        self._num_places = len(places)
        self._outputs = [places[local] for local in program.outputs]
        for place, number in last_use.items():
            if place not in self._outputs:
                self._steps[number][3].append(place)        # free it as soon as it is not needed
        self._constants = [Tensor(np.array(self.piece_of(local, local.value.constant)))
                           for local in program.constants]      # copies: as they were when traced

    def __call__(self, pieces: Mapping[str, Tensor]) -> list[Tensor]:
        """The pieces of the outputs, from the pieces of the inputs by name.  Collective.

        Pieces are without padding, as `piece_of` cuts them.
        """
        values: list[Any] = [None] * self._num_places
        for place, name in enumerate(self.program.inputs):
            values[place] = pieces[name]
        values[len(pieces):len(pieces) + len(self._constants)] = self._constants
        for run, inputs, place, freed in self._steps:
            values[place] = run(*[values[x.index] if isinstance(x, ValueIndex) else x
                                  for x in inputs])
            for each in freed:
                values[each] = None
        return [values[place] for place in self._outputs]

    # ---- pieces

    def box_of(self, local: Local) -> tuple[tuple[int, int], ...]:
        """The (start, stop) of this rank's piece along each dimension, without padding."""
        return tuple([piece_bounds(n, axes, self.mesh.shape, self.coordinates)
                      for n, axes in zip(local.value.shape, local.layout.dims)])

    def shape_of(self, local: Local) -> tuple[int, ...]:
        """The shape of this rank's piece, without padding."""
        return tuple([stop - start for start, stop in self.box_of(local)])

    def piece_of(self, local: Local, whole: Any) -> Any:
        """This rank's piece of a whole array, without padding."""
        order = self.order_of(local)
        whole = whole if order is None else np.take(whole, order, axis=-1)
        return whole[tuple(slice(*bounds) for bounds in self.box_of(local))]

    def order_of(self, local: Local) -> np.ndarray | None:
        """The order of the last dimension before it is cut, if it has sections."""
        return sections_order(local, num_pieces(local.layout.dims[-1], self.mesh.shape)) \
            if local.layout.dims else None

    # ---- instructions

    def along(self, axes: Axes) -> Communicator:
        """The communicator along `axes`, its ranks numbered with the last axis fastest."""
        if axes not in self._comms:
            comm = self.mesh[axes]
            nested = tuple([axis for axis in self.mesh.axes if axis in axes])
            if nested != axes:
                split = comm.split(0, index_along(axes, self.mesh.shape, self.coordinates))
                assert split is not None
                comm = split
            self._comms[axes] = comm
        return self._comms[axes]

    def bind(self, instruction: Instruction) -> Run:
        """A function of the operands' pieces that carries out an instruction."""
        if instruction.kind == "compute":
            body = self.body_of(instruction)
            if body is not None:
                return lambda *pieces: body(self.mesh, *pieces)
            function, options = local_call(instruction, self.mesh.shape, self.coordinates,
                                           self.along, self.shape_of(instruction.result))
            if function in WORDS:           # a short piece of words is padded, without effect
                length = instruction.inputs[0].shape[WORDS[function]]
                return lambda x, ids: function.apply(
                    pad_to(x, WORDS[function] % x.ndim, length), ids, **options)
            arrays = {name: each for name, each in options.items() if isinstance(each, np.ndarray)}
            if not arrays:
                return lambda *inputs: function.apply(*inputs, **options)
            return lambda x, *others: function.apply(x, *others, **options | {
                name: asarray_like(each, x.data) for name, each in arrays.items()})
        if instruction.kind == "add bias":
            return lambda y, bias: y + bias
        move = instruction.move
        run = self.bind_permute(instruction) if instruction.kind == "permute" else \
            COLLECTIVES[instruction.kind](PieceExchange(
                self.along(instruction.axes), -1 if move is None else move.dim,
                -1 if move is None else move.to, instruction.inputs[0], instruction.result))
        padded, own = instruction.inputs[0].shape, self.shape_of(instruction.result)
        return lambda x: strip(run(pad(x, padded)), own)

    def body_of(self, instruction: Instruction) -> Run | None:
        """The user's function of a shard_map; None for another operation."""
        operation = instruction.operation
        return operation.options["body"] if operation and operation.function is ShardMap else None

    def bind_permute(self, instruction: Instruction) -> Run:
        """A function that exchanges pieces, so that the axes of a dimension change their order."""
        before, after = instruction.inputs[0], instruction.result
        dim = instruction.move.dim          # type: ignore[union-attr]
        old, new = before.layout.dims[dim], after.layout.dims[dim]
        lengths, place = self.mesh.shape, dict(zip(new, np.unravel_index(
            self.along(old).rank, [self.mesh.shape[axis] for axis in new])))
        dest = int(np.ravel_multi_index([place[axis] for axis in old],
                                        [lengths[axis] for axis in old]))
        return lambda x: Permute.apply(x, comm=self.along(old), dest=dest,
                                       source=self.along(new).rank)


class ValueIndex:
    """The index of a value in the list that a call fills."""

    def __init__(self, index: int):
        self.index = index
