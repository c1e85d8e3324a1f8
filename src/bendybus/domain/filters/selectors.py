"""Selectors: the filter language in the dialect of JMS clients.

The grammar is that of rules, with these differences. Names may begin with `_` or
`$` and are case-sensitive. `BETWEEN` is supported. A property alone is a condition:
it must be true. A comparison of incompatible values is false; in a rule it
fails. A message's own fields have their JMS names
(`JMSPriority`) or AMQP names (`amqp.subject`). A name that the message
does not have is null. The fields: envelope/contents.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final
from uuid import UUID

from bendybus.domain.filters.ast import (
    And,
    Comparison,
    Constant,
    Expression,
    Not,
    Or,
    Predicate,
    Property,
    PropertyCall,
)
from bendybus.domain.filters.cost import ASKING_COST, condition_cost
from bendybus.domain.filters.evaluate import (
    Ask,
    compile_condition,
    conjunction,
    disjunction,
    inversion,
)
from bendybus.domain.filters.lexer import Token, Writing, refusal
from bendybus.domain.filters.parser import COMPARE, Parser
from bendybus.domain.filters.reading import MessageView, Reading
from bendybus.domain.filters.values import Value
from bendybus.errors import ArgumentError, FilterError

__all__ = ["FIELD_PREFIX", "Selector", "SelectorFilter", "SelectorReading"]

# The prefix of AMQP fields; the name of the field follows, with underscores.
FIELD_PREFIX: Final = "amqp."

# "An identifier is an unlimited-length character sequence that must begin with a Java identifier start
# character" [Jakarta Messaging 3.8.1.1].
_WRITING: Final = Writing(name_starts="_$", name_parts="_$", java_numbers=True)


class SelectorReading(Reading):
    """One message as a selector reads it. Names are case-sensitive."""

    __slots__ = ("_field",)

    def __init__(self, message: MessageView) -> None:
        super().__init__(message, _no_new_id)
        self._field = message.field

    def spelling(self, name: str) -> str | None:
        return name if name in self.user else None

    def get(self, name: str) -> Value:
        if name.startswith(("JMS", FIELD_PREFIX)) and name not in self.user:
            return self._field(name)
        return self.user.get(name)


class Selector:
    """Compiled when it is created. `ArgumentError` if the text is not a condition."""

    __slots__ = ("_ask", "cost", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        parser = _SelectorParser(text, _WRITING)
        condition = parser.predicate(0)
        parser.end()
        self._ask = _compile(condition)
        self.cost = ASKING_COST + condition_cost(condition, {})
        """The cost of its evaluation (cost.py)."""

    def matches(self, message: MessageView) -> bool:
        """Whether the message matches. False if the result is unknown or the evaluation fails."""
        return self.accepts(SelectorReading(message))

    def accepts(self, reading: SelectorReading) -> bool:
        try:
            return self._ask(reading) is True
        except FilterError:
            return False


@dataclass(frozen=True, slots=True)
class SelectorFilter:
    """The selector of a JMS subscription as the filter of its rule: it decides what the topic copies there.

    All selectors of a topic share one reading of a message, and so its budget.
    """

    expression: str
    cost: int = field(init=False, repr=False, compare=False)
    _selector: Selector = field(init=False, repr=False, compare=False)
    constant: ClassVar[bool | None] = None

    def __post_init__(self) -> None:
        selector = Selector(self.expression)
        object.__setattr__(self, "_selector", selector)
        object.__setattr__(self, "cost", selector.cost)

    def matches(self, reading: Reading) -> bool:
        if not isinstance(reading.selected, SelectorReading):
            reading.selected = SelectorReading(reading.message)
        return self._selector.accepts(reading.selected)


class _SelectorParser(Parser):
    def _power(self) -> int:
        return COMPARE if self.tokens.is_word("BETWEEN") else super()._power()

    def _comparison(self, left: Expression, start: Token) -> Predicate:
        if self.tokens.is_word("BETWEEN"):
            self.tokens.take()
            return self._between(left)
        if self.tokens.next.text == "NOT" and self.tokens.following_is("BETWEEN"):
            self.tokens.take()
            self.tokens.take()
            return Not(self._between(left))
        return super()._comparison(left, start)

    def _between(self, value: Expression) -> Predicate:
        low = self.expression(COMPARE)
        self.tokens.expect("AND", "AND and the upper bound of BETWEEN")
        high = self.expression(COMPARE)
        return And((Comparison(">=", value, low), Comparison("<=", value, high)))

    def _as_condition(self, node: Expression, start: Token, expected: str) -> Predicate:
        if isinstance(node, Property | PropertyCall) or (
            isinstance(node, Constant) and isinstance(node.value, bool)
        ):
            return Comparison("=", node, Constant(True))
        return super()._as_condition(node, start, expected)

    def _scoped(self, token: Token) -> Property:
        if token.is_bare and f"{token.text}." == FIELD_PREFIX and self.tokens.skip("."):
            return Property(FIELD_PREFIX + self._property().name)
        return super()._scoped(token)

    def _call(self, token: Token) -> Expression:
        raise refusal(
            token.position, f"the function '{token.text}'", "a property: selectors have no functions"
        )


def _compile(node: Predicate) -> Ask:
    """Compile each comparison on its own: one that fails is false, and the others still count."""
    match node:
        case And(operands):
            return conjunction([_compile(operand) for operand in operands])
        case Or(operands):
            return disjunction([_compile(operand) for operand in operands])
        case Not(operand):
            return inversion(_compile(operand))
    ask = compile_condition(node, {})

    def lenient(reading: Reading) -> bool | None:
        try:
            return ask(reading)
        except FilterError:
            return False

    return lenient


def _no_new_id() -> UUID:
    raise ArgumentError("Selectors have no functions.")
