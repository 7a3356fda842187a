"""Masks: the numbers in the padding of an operand, where they would change the result.

    sum over 6 elements on 4 ranks     a b | c d | e f | 0 0         a maximum: -∞ in place of 0
    a / b, and 0 / 0 in the padding    b is filled with 1: no NaN, which a zero gradient would not
                                       stop
"""

import numpy as np

from ...autograd.ops import cross_entropy, elementwise, embedding
from ..graph import Operation, Value
from ..rules.rule import FactorRule

SAFE = {elementwise.Divide: 1, elementwise.Log: 0, elementwise.Sqrt: 0, elementwise.Power: 0}


def neutral_fill(operation: Operation, rule: FactorRule, index: int, factor: str) -> float | None:
    """The number for an operand's padding along `factor`; None if any will do.
    """
    function = operation.function
    if SAFE.get(function) == index:
        return 1.0
    if factor not in rule.contracted:
        return None
    if function is embedding.Embedding:
        return None                         # no word has a number in the padding
    if function is cross_entropy.CrossEntropy:
        x = operation.inputs[index]
        is_class = isinstance(x, Value) and index == 0 and factor == (rule.of(0) or ())[-1][0]
        return None if is_class else operation.options["ignore_index"] if index else 0.0
    return -np.inf if rule.combine == "max" else 0.0
