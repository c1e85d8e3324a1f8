"""The syntax tree of a filter or an action: the parser builds it, the compiler walks it.

Chains are flat: `a AND b AND c` is one node with three operands and `a + b - c`
one node with two steps. So only parentheses, NOT and signs make a tree
deep, and the parser counts those. Nodes compare by content, not by
position. Back to text: text.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from bendybus.domain.filters.values import Value

__all__ = [
    "And",
    "Arithmetic",
    "Comparison",
    "Constant",
    "Exists",
    "Expression",
    "In",
    "IsNull",
    "Like",
    "NewId",
    "Node",
    "Not",
    "Or",
    "Parameter",
    "Predicate",
    "Property",
    "PropertyCall",
    "Reference",
    "Remove",
    "Scope",
    "Set",
    "Signed",
    "Statement",
    "Step",
]

Scope = Literal["sys", "user"]


# -- expressions: they have a value -------------------------------------------


@dataclass(frozen=True, slots=True)
class Constant:
    value: Value


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    scope: Scope = "user"


@dataclass(frozen=True, slots=True)
class PropertyCall:
    """`property(name)` or `p(name)`: which property it is depends on the message."""

    name: Expression


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class NewId:
    """`newid()`: a new GUID."""


@dataclass(frozen=True, slots=True)
class Signed:
    sign: Literal["+", "-"]
    operand: Expression


@dataclass(frozen=True, slots=True)
class Step:
    sign: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Evaluated from left to right. All signs have the same precedence: `+ -` or `* / %`."""

    first: Expression
    steps: tuple[Step, ...]


# -- predicates: they are true, false or unknown -------------------------------


@dataclass(frozen=True, slots=True)
class Comparison:
    sign: str
    """One of = <> < <= > >=; the parser turns != into <>."""
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class IsNull:
    subject: Reference
    negated: bool = False


@dataclass(frozen=True, slots=True)
class In:
    left: Expression
    options: tuple[Expression, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    left: Expression
    pattern: Expression
    escape: Expression | None = None
    negated: bool = False
    position: int = field(default=0, compare=False)
    """The position of the pattern."""


@dataclass(frozen=True, slots=True)
class Exists:
    subject: Reference


@dataclass(frozen=True, slots=True)
class Not:
    operand: Predicate


@dataclass(frozen=True, slots=True)
class And:
    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Predicate, ...]


# -- statements: what an action does -------------------------------------------


@dataclass(frozen=True, slots=True)
class Set:
    target: Property
    value: Expression


@dataclass(frozen=True, slots=True)
class Remove:
    target: Property


Reference: TypeAlias = Property | PropertyCall
Expression: TypeAlias = Constant | Property | PropertyCall | Parameter | NewId | Signed | Arithmetic
Predicate: TypeAlias = Comparison | IsNull | In | Like | Exists | Not | And | Or
Statement: TypeAlias = Set | Remove
Node: TypeAlias = Expression | Predicate | Statement
