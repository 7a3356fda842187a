"""Simplifications of a local program: fewer bytes in backward, the same forward.

    w ─▶ transpose ─▶ copy         w ─▶ copy ─▶ transpose       one sum for all uses of w
    x ─▶ gather ─▶ copy            x ─▶ all-gather              backward: one reduce-scatter instead
                                                                of an all-reduce and a slice

An operation that all ranks compute alike may come before a copy or after it.
"""

from ..spec import all_axes
from .program import Instruction, Local

Users = dict[Local, list[Instruction]]


def simplified(instructions: list[Instruction], outputs: list[Local]) -> list[Instruction]:
    """The instructions, with copies as early as possible, and merged with gathers."""
    instructions = copies_first(instructions, outputs)
    return gathers_with_copies(instructions, outputs)


def users_of(instructions: list[Instruction]) -> Users:
    """The instructions that use each piece."""
    users: Users = {}
    for each in instructions:
        for x in each.inputs:
            if isinstance(x, Local):
                users.setdefault(x, []).append(each)
    return users


def replace(instructions: list[Instruction], new: dict[Local, Local]) -> list[Instruction]:
    """The instructions with `new` pieces as inputs, without those whose results are replaced."""
    for each in instructions:
        each.inputs = [new.get(x, x) if isinstance(x, Local) else x for x in each.inputs]
    return [each for each in instructions if each.result not in new]


def copies_first(instructions: list[Instruction], outputs: list[Local]) -> list[Instruction]:
    """Move copies before the operations whose results they copy, if all ranks compute these alike.

    Copies of one piece along the same axes become one.
    """
    for place in reversed(range(len(instructions))):
        each = instructions[place]
        after = users_of(instructions).get(each.result, [])
        inputs = [x for x in each.inputs if isinstance(x, Local)]
        axes = after[0].axes if after else ()
        varies = set(all_axes(each.cut.values()))
        if (each.kind == "compute" and after and not varies.intersection(axes) and len(inputs) == 1
                and each.result not in outputs and inputs[0].nbytes <= each.result.nbytes
                and all(user.kind == "copy" and user.axes == axes for user in after)):
            x = inputs[0]
            copied = Local(x.value, x.layout, x.mesh)
            instructions.insert(place, Instruction("copy", [x], copied, axes=axes))
            each.inputs = [copied if y is x else y for y in each.inputs]
            instructions = replace(instructions, {user.result: each.result for user in after})
    first: dict[tuple, Local] = {}
    new: dict[Local, Local] = {}
    for each in instructions:
        if each.kind == "copy":
            known = first.setdefault((each.inputs[0], each.axes), each.result)
            if known is not each.result:
                new[each.result] = known
    return replace(instructions, new)


def gathers_with_copies(instructions: list[Instruction], outputs: list[Local]) -> list[Instruction]:
    """Make one all-gather of a gather and a copy along the same axes.

    Its gradient is reduce-scattered, instead of all-reduced and sliced.
    """
    users = users_of(instructions)
    new: dict[Local, Local] = {}
    for each in instructions:
        after = users.get(each.result, [])
        if each.kind == "gather" and after and each.result not in outputs and all(
                user.kind == "copy" and set(each.axes) == set(user.axes) for user in after):
            each.kind = "all-gather"
            new |= {user.result: each.result for user in after}
    return replace(instructions, new)
