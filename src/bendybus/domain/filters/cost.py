"""What the filters of a topic cost, known when a rule is made.

A filter costs one for being asked, and for each `LIKE` that searches a text what one
character of that text costs (like.py). Every message is shown to all filters of its topic, so their costs
are added up and limited (topic_entities.py). What the texts of one message cost is limited too,
since they may be long: `Reading.spend`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bendybus.domain.filters.ast import And, Constant, Expression, Like, Not, Or, Parameter, Predicate
from bendybus.domain.filters.like import SHIFT_AND_COST, compile_like
from bendybus.domain.filters.values import Value

__all__ = ["ASKING_COST", "condition_cost"]

ASKING_COST: Final = 1


def condition_cost(node: Predicate, parameters: Mapping[str, Value]) -> int:
    """Of a condition that has been compiled with these parameters, and so can be."""
    match node:
        case And(operands) | Or(operands):
            return sum(condition_cost(operand, parameters) for operand in operands)
        case Not(operand):
            return condition_cost(operand, parameters)
        case Like(_, pattern, escape):
            known, escaping = _text(pattern, parameters), _text(escape, parameters)
            if known is None or (escape is not None and escaping is None):
                # It is in the message: it may be any.
                return SHIFT_AND_COST
            return compile_like(known, escaping).cost
        case _:
            return 0


def _text(node: Expression | None, parameters: Mapping[str, Value]) -> str | None:
    """What a constant or a parameter says; None for everything else."""
    value = parameters.get(node.name.lower()) if isinstance(node, Parameter) else None
    if isinstance(node, Constant):
        value = node.value
    return value if isinstance(value, str) else None
