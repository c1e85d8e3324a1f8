"""From tokens to a tree, by precedence: OR, AND, NOT, comparisons, `+ -`, `* / %`, signs.

Conditions and values share one ladder of precedence, so a parenthesis may contain either without looking
ahead. Whether a node is a condition or a value is checked where it is used. Nesting is counted, so no text
can exhaust the stack, here or later. An error in the text is an `ArgumentError` that names the position, what
was found there and what was expected (cursor.py).
"""

from __future__ import annotations

from typing import Final, Literal, cast

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
    Not,
    Or,
    Parameter,
    Predicate,
    Property,
    PropertyCall,
    Reference,
    Remove,
    Scope,
    Set,
    Signed,
    Statement,
    Step,
)
from bendybus.domain.filters.cursor import TokenCursor
from bendybus.domain.filters.lexer import INTEGER_MAX, RULE_WRITING, Kind, Token, Writing, refusal
from bendybus.errors import ArgumentError

__all__ = ["NESTING_MAX", "STATEMENTS_MAX", "Parser", "parse_action", "parse_condition"]

# Each level costs the parser about ten of Python's thousand stack frames.
NESTING_MAX: Final = 32

# "Maximum number of expressions per rule action: 32".
STATEMENTS_MAX: Final = 32

# How tightly an operator binds. Parentheses start again at LOOSEST.
LOOSEST, OR, AND, NOT, COMPARE, SUM, PRODUCT = range(7)

_POWER: Final[dict[str, int]] = {
    "OR": OR,
    "AND": AND,
    **dict.fromkeys(("=", "<>", "!=", "<", "<=", ">", ">=", "IS", "IN", "LIKE", "NOT"), COMPARE),
    **dict.fromkeys(("+", "-"), SUM),
    **dict.fromkeys(("*", "/", "%"), PRODUCT),
}

_PREDICATES: Final = (Comparison, IsNull, In, Like, Exists, Not, And, Or)
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}

A_VALUE: Final = "a value: a property, a constant, a function or a parameter"
A_CONDITION: Final = "a condition, such as a comparison (a value alone is none: write x = TRUE)"
A_PROPERTY: Final = "a property"
A_COMPARISON: Final = "a comparison, such as = or LIKE"
AN_OPERATOR: Final = "an operator or the end"


def parse_condition(text: str) -> Predicate:
    """The condition of a filter."""
    parser = Parser(text)
    predicate = parser.predicate(LOOSEST)
    parser.end()
    return predicate


def parse_action(text: str) -> tuple[Statement, ...]:
    """The statements of an action, at least one."""
    parser = Parser(text)
    statements = [parser.statement()]
    while not parser.tokens.at_end:
        statements.append(parser.statement())
        if len(statements) > STATEMENTS_MAX:
            raise ArgumentError(f"The action has more than {STATEMENTS_MAX} statements.")
    return tuple(statements)


class Parser:
    """Parses the language of rules. The parser of JMS selectors derives from it: selectors.py."""

    def __init__(self, text: str, writing: Writing = RULE_WRITING) -> None:
        self.tokens = TokenCursor(text, writing)
        self._nesting = 0

    # -- statements

    def end(self) -> None:
        if not self.tokens.at_end:
            raise self.tokens.refuse(AN_OPERATOR)

    def statement(self) -> Statement:
        token = self.tokens.take()
        word = token.text.upper() if token.is_bare else ""
        statement: Statement
        if word == "SET":
            target = self._property()
            self.tokens.expect("=")
            statement = Set(target, self.expression(COMPARE))
        elif word == "REMOVE":
            statement = Remove(self._property())
        else:
            raise refusal(token.position, token, "SET or REMOVE")
        # The documentation calls the semicolon optional and puts a comma between statements.
        if self.tokens.next.kind is Kind.SIGN and self.tokens.next.text in ";,":
            self.tokens.take()
        elif not self.tokens.at_end and not self.tokens.is_word("SET", "REMOVE"):
            raise self.tokens.refuse("';', another statement or the end")
        return statement

    # -- the ladder

    def predicate(self, floor: int) -> Predicate:
        start = self.tokens.next
        node = self._climb(floor)
        if isinstance(node, _PREDICATES):
            return node
        return self._as_condition(node, start, A_CONDITION if self.tokens.at_end else A_COMPARISON)

    def expression(self, floor: int) -> Expression:
        start = self.tokens.next
        node = self._climb(floor)
        if isinstance(node, _PREDICATES):
            raise refusal(start.position, f"a condition beginning with {start}", A_VALUE)
        return node

    def _climb(self, floor: int) -> Predicate | Expression:
        """Parse the longest run of operators that all bind more tightly than `floor`."""
        start = self.tokens.next
        left = self._prefix()
        while (power := self._power()) > floor:
            if power <= AND:
                left = self._junction(power, self._as_predicate(left, start))
            else:
                value = self._as_expression(left)
                left = self._comparison(value, start) if power == COMPARE else self._chain(power, value)
        return left

    def _power(self) -> int:
        token = self.tokens.next
        return _POWER.get(token.text, LOOSEST) if token.kind in (Kind.SIGN, Kind.KEYWORD) else LOOSEST

    def _junction(self, power: int, first: Predicate) -> Predicate:
        operands = [first]
        while self._power() == power:
            self.tokens.take()
            operands.append(self.predicate(power))
        return And(tuple(operands)) if power == AND else Or(tuple(operands))

    def _chain(self, power: int, first: Expression) -> Expression:
        steps = []
        while self._power() == power:
            sign = self.tokens.take().text
            steps.append(Step(sign, self.expression(power)))
        return Arithmetic(first, tuple(steps))

    def _comparison(self, left: Expression, start: Token) -> Predicate:
        token = self.tokens.take()
        match token.text:
            case "IS":
                if not isinstance(left, Property | PropertyCall):
                    raise refusal(start.position, start, f"{A_PROPERTY} before IS")
                negated = self.tokens.skip("NOT")
                self.tokens.expect("NULL")
                return IsNull(left, negated)
            case "NOT":
                if self.tokens.skip("IN"):
                    return self._in(left, negated=True)
                self.tokens.expect("LIKE", "IN or LIKE after NOT")
                return self._like(left, negated=True)
            case "IN":
                return self._in(left, negated=False)
            case "LIKE":
                return self._like(left, negated=False)
            case sign:
                return Comparison("<>" if sign == "!=" else sign, left, self.expression(COMPARE))

    def _in(self, left: Expression, *, negated: bool) -> Predicate:
        self.tokens.expect("(")
        options = [self.expression(COMPARE)]
        while self.tokens.skip(","):
            options.append(self.expression(COMPARE))
        self.tokens.expect(")", "',' or ')'")
        return In(left, tuple(options), negated)

    def _like(self, left: Expression, *, negated: bool) -> Predicate:
        position = self.tokens.next.position
        pattern = self.expression(COMPARE)
        escape = self.expression(COMPARE) if self.tokens.skip("ESCAPE") else None
        return Like(left, pattern, escape, negated, position)

    # -- operands

    def _prefix(self) -> Predicate | Expression:
        self._nesting += 1
        # A name inside N parentheses is at depth N + 1.
        if self._nesting > NESTING_MAX + 1:
            raise ArgumentError(
                f"At position {self.tokens.next.position}: parentheses, NOT and signs are nested more than "
                f"{NESTING_MAX} deep."
            )
        token = self.tokens.take()
        match token.kind:
            case Kind.STRING:
                node: Predicate | Expression = Constant(token.text)
            case Kind.NUMBER:
                node = self._number(token, token.number)
            case Kind.PARAMETER:
                node = Parameter(token.text, token.position)
            case Kind.KEYWORD:
                node = self._keyword(token)
            case Kind.NAME:
                node = self._named(token)
            case Kind.SIGN if token.text == "(":
                node = self._climb(LOOSEST)
                self.tokens.expect(")", "an operator or ')'")
            case Kind.SIGN if token.text in ("+", "-"):
                node = self._signed(token)
            case _:
                raise refusal(token.position, token, A_VALUE)
        self._nesting -= 1
        return node

    def _keyword(self, token: Token) -> Predicate | Expression:
        match token.text:
            case "NOT":
                return Not(self.predicate(NOT))
            case "EXISTS":
                self.tokens.expect("(")
                subject = self._reference()
                self.tokens.expect(")")
                return Exists(subject)
            case word if word in _CONSTANTS:
                return Constant(_CONSTANTS[word])
        raise refusal(token.position, token, f"{A_VALUE} (a property of this name is written [{token.text}])")

    def _signed(self, token: Token) -> Expression:
        following = self.tokens.next
        if token.text == "-" and following.kind is Kind.NUMBER:
            self.tokens.take()
            return self._number(following, -following.number)
        return Signed(cast("Literal['+', '-']", token.text), self.expression(PRODUCT))

    def _number(self, token: Token, value: int | float) -> Constant:
        if isinstance(value, int) and value >= INTEGER_MAX:
            raise refusal(token.position, token.text, f"an integer of at most {INTEGER_MAX - 1}")
        return Constant(value)

    # -- names

    def _named(self, token: Token) -> Expression:
        if token.is_bare and self.tokens.next.kind is Kind.SIGN and self.tokens.next.text == "(":
            return self._call(token)
        return self._scoped(token)

    def _call(self, token: Token) -> Expression:
        self.tokens.expect("(")
        match token.text.lower():
            case "newid":
                self.tokens.expect(")")
                return NewId()
            case "property" | "p":
                name = self.expression(COMPARE)
                self.tokens.expect(")")
                return PropertyCall(name)
        raise refusal(token.position, token, "one of the functions newid(), property(name), p(name)")

    def _scoped(self, token: Token) -> Property:
        if not self.tokens.skip("."):
            return Property(token.text)
        scope = token.text.lower()
        if not token.is_bare or scope not in ("sys", "user"):
            raise refusal(token.position, token, "'sys' or 'user' before '.'")
        name = self.tokens.take()
        if name.kind is not Kind.NAME:
            raise refusal(name.position, name, "the name of a property after '.'")
        return Property(name.text, cast("Scope", scope))

    def _property(self) -> Property:
        token = self.tokens.take()
        if token.kind is not Kind.NAME:
            raise refusal(token.position, token, A_PROPERTY)
        return self._scoped(token)

    def _reference(self) -> Reference:
        token = self.tokens.next
        node = self._prefix() if token.kind is Kind.NAME else None
        if not isinstance(node, Property | PropertyCall):
            raise refusal(token.position, token, A_PROPERTY)
        return node

    def _as_predicate(self, node: Predicate | Expression, start: Token) -> Predicate:
        return node if isinstance(node, _PREDICATES) else self._as_condition(node, start, A_CONDITION)

    def _as_condition(self, node: Expression, start: Token, expected: str) -> Predicate:
        """Called for a value where a condition is required. In rules, this is an error."""
        if expected is A_COMPARISON:
            raise self.tokens.refuse(expected)
        raise refusal(start.position, start, expected)

    def _as_expression(self, node: Predicate | Expression) -> Expression:
        if isinstance(node, _PREDICATES):
            raise self.tokens.refuse("AND, OR, ')' or the end after a condition")
        return node
