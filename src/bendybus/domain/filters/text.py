"""Converts a tree back to text, in one canonical form that parses to the same tree.

Names are in brackets if necessary, and parentheses are used if precedence requires them.
Errors quote conditions in this form. The text that a user gave is stored unchanged elsewhere.
"""

from __future__ import annotations

from typing import Final

from bendybus.domain.filters.ast import (
    And,
    Arithmetic,
    Comparison,
    Constant,
    Exists,
    Expression,
    In,
    IsNull,
    Like,
    NewId,
    Node,
    Not,
    Or,
    Parameter,
    Predicate,
    Property,
    PropertyCall,
    Remove,
    Set,
    Signed,
)
from bendybus.domain.filters.lexer import is_keyword
from bendybus.domain.filters.values import Value, text_of

__all__ = ["to_text"]

_SUM: Final = ("+", "-")
_FUNCTIONS_AND_SCOPES: Final = frozenset({"NEWID", "PROPERTY", "P", "SYS", "USER"})


def to_text(node: Node) -> str:
    match node:
        case And(operands):
            return " AND ".join(_grouped(operand, And, Or) for operand in operands)
        case Or(operands):
            return " OR ".join(_grouped(operand, Or) for operand in operands)
        case Not(operand):
            return f"NOT {_grouped(operand, And, Or)}"
        case Comparison(sign, left, right):
            return f"{to_text(left)} {sign} {to_text(right)}"
        case IsNull(subject, negated):
            return f"{to_text(subject)} IS {_not(negated)}NULL"
        case In(left, options, negated):
            return f"{to_text(left)} {_not(negated)}IN ({', '.join(map(to_text, options))})"
        case Like(left, pattern, escape, negated):
            tail = "" if escape is None else f" ESCAPE {to_text(escape)}"
            return f"{to_text(left)} {_not(negated)}LIKE {to_text(pattern)}{tail}"
        case Exists(subject):
            return f"EXISTS({to_text(subject)})"
        case Set(target, value):
            return f"SET {to_text(target)} = {to_text(value)}"
        case Remove(target):
            return f"REMOVE {to_text(target)}"
        case _:
            return _expression(node)


def _expression(node: Expression) -> str:
    match node:
        case Constant(value):
            return _constant(value)
        case Property(name, scope):
            return f"sys.{_name(name)}" if scope == "sys" else _name(name)
        case PropertyCall(name):
            return f"property({to_text(name)})"
        case Parameter(name):
            return f"@{name}"
        case NewId():
            return "newid()"
        case Signed(sign, Constant(value)) if not _constant(value).startswith("-"):
            # `-5` would parse as a negative constant, not as a sign before a constant.
            return f"{sign}({_constant(value)})"
        case Signed(sign, operand):
            return sign + _operand(operand, is_tight=True)
        case Arithmetic(first, steps):
            # The left operand needs parentheses only if it is a chain of the same or lower precedence.
            is_product = steps[0].sign not in _SUM
            text = _operand(first, is_tight=is_product or _is_sum(first))
            for step in steps:
                text += f" {step.sign} {_operand(step.operand, is_tight=is_product or _is_sum(step.operand))}"
            return text


def _operand(node: Expression, *, is_tight: bool) -> str:
    text = to_text(node)
    return f"({text})" if is_tight and isinstance(node, Arithmetic) else text


def _is_sum(node: Expression) -> bool:
    return isinstance(node, Arithmetic) and node.steps[0].sign in _SUM


def _grouped(node: Predicate, *looser: type) -> str:
    return f"({to_text(node)})" if isinstance(node, looser) else to_text(node)


def _not(negated: bool) -> str:
    return "NOT " if negated else ""


def _constant(value: Value) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case int():
            return str(int(value))
        case float():
            return repr(float(value))
        # Only a parameter can have a value of another type, and only an error shows it.
        case bytes():
            return "'...'"
        case _:
            return f"'{text_of(value)}'"


def _name(name: str) -> str:
    is_plain = name[:1].isalpha() and all(c.isalpha() or c.isdecimal() or c == "_" for c in name)
    if is_plain and not is_keyword(name) and name.upper() not in _FUNCTIONS_AND_SCOPES:
        return name
    return "[" + name.replace("]", "]]") + "]"
