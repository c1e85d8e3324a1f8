"""The cost of a topic's filters, computed when a rule is created.

A filter costs one for its evaluation, plus, for each `LIKE` that searches a text, the cost per
character of that text (like.py). Every message is shown to all filters of its topic, so their costs
are added up and limited (topic_entities.py). The cost of searching the texts of one message is limited
too, because they may be long: `Reading.spend`.
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
    """The cost of a condition that compiles with these parameters."""
    match node:
        case And(operands) | Or(operands):
            return sum(condition_cost(operand, parameters) for operand in operands)
        case Not(operand):
            return condition_cost(operand, parameters)
        case Like(_, pattern, escape):
            known, escaping = _text(pattern, parameters), _text(escape, parameters)
            if known is None or (escape is not None and escaping is None):
                # The pattern comes from the message, so it can be any pattern.
                return SHIFT_AND_COST
            return compile_like(known, escaping).cost
        case _:
            return 0


def _text(node: Expression | None, parameters: Mapping[str, Value]) -> str | None:
    """The text of a constant or a parameter; None for everything else."""
    value = parameters.get(node.name.lower()) if isinstance(node, Parameter) else None
    if isinstance(node, Constant):
        value = node.value
    return value if isinstance(value, str) else None
