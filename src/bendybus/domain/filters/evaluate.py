"""Compiles a tree once into closures that are called for every message.

A condition returns True, False or None (unknown). An expression returns its
value, or None if it is unknown. Parameters are replaced by constants when a tree
is compiled. The rules for two values are in values.py. A condition that cannot
be evaluated raises `FilterError`, which quotes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

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
    Reference,
    Signed,
)
from bendybus.domain.filters.lexer import refusal
from bendybus.domain.filters.like import LikePattern, compile_like
from bendybus.domain.filters.reading import Reading, system_property
from bendybus.domain.filters.text import to_text
from bendybus.domain.filters.values import (
    COMPARE,
    TEXT_VALUE_LENGTH_MAX,
    Value,
    arithmetic,
    compare,
    signed,
    type_name,
)
from bendybus.errors import FilterError

__all__ = [
    "Ask",
    "Compute",
    "Parameters",
    "compile_condition",
    "compile_expression",
    "conjunction",
    "disjunction",
    "inversion",
]

Ask: TypeAlias = Callable[[Reading], bool | None]
Compute: TypeAlias = Callable[[Reading], Value]
Parameters: TypeAlias = Mapping[str, Value]
"""By lower-case name, without the @."""

_SCOPES: Final = ("sys.", "user.")


def compile_condition(node: Predicate, parameters: Parameters) -> Ask:
    match node:
        case And(operands):
            return conjunction([compile_condition(operand, parameters) for operand in operands])
        case Or(operands):
            return disjunction([compile_condition(operand, parameters) for operand in operands])
        case Not(operand):
            return inversion(compile_condition(operand, parameters))
        case Comparison():
            return _comparison(node, parameters)
        case IsNull(subject, negated):
            value = compile_expression(subject, parameters)
            if negated:
                return lambda reading: value(reading) is not None
            return lambda reading: value(reading) is None
        case Exists(subject):
            return _exists(subject, parameters)
        case In():
            ask = _in(node, parameters)
        case Like():
            ask = _like(node, parameters)
    return inversion(ask) if node.negated else ask


def compile_expression(node: Expression, parameters: Parameters) -> Compute:
    match node:
        case Constant() | Parameter():
            known = _known(node, parameters)
            assert isinstance(known, Constant), "a parameter stands for one"
            constant = known.value
            return lambda reading: constant
        case Property(name, "user"):
            return lambda reading: reading.get(name)
        case Property(name, _):
            return _system(name)
        case PropertyCall(argument):
            called = compile_expression(argument, parameters)
            return lambda reading: _property_by_name(reading, called(reading), node)
        case NewId():
            return lambda reading: reading.new_id()
        case Signed():
            return _signed(node, parameters)
        case Arithmetic():
            return _arithmetic(node, parameters)


# -- three-valued logic ---------------------------------------------------------


def conjunction(asks: list[Ask]) -> Ask:
    """True if all are true; False if one is false; otherwise unknown."""
    if len(asks) == 2:
        first, second = asks

        def both(reading: Reading) -> bool | None:
            one = first(reading)
            if one is False:
                return False
            other = second(reading)
            return other if one or other is False else None

        return both

    def all_of(reading: Reading) -> bool | None:
        result: bool | None = True
        for ask in asks:
            answer = ask(reading)
            if answer is False:
                return False
            if answer is None:
                result = None
        return result

    return all_of


def disjunction(asks: list[Ask]) -> Ask:
    """True if one is true, even if others are unknown."""

    def any_of(reading: Reading) -> bool | None:
        result: bool | None = False
        for ask in asks:
            answer = ask(reading)
            if answer:
                return True
            if answer is None:
                result = None
        return result

    return any_of


def inversion(ask: Ask) -> Ask:
    """Unknown stays unknown."""

    def inverted(reading: Reading) -> bool | None:
        answer = ask(reading)
        return None if answer is None else not answer

    return inverted


# -- conditions -----------------------------------------------------------------


def _comparison(node: Comparison, parameters: Parameters) -> Ask:
    left, right = compile_expression(node.left, parameters), compile_expression(node.right, parameters)
    constant = _known(node.right, parameters)
    if isinstance(constant, Constant) and isinstance(constant.value, str | int):
        return _comparison_with(node, left, constant.value)
    sign = node.sign

    def general(reading: Reading) -> bool | None:
        one, other = left(reading), right(reading)
        if one is None or other is None:
            return None
        try:
            return compare(sign, one, other)
        except FilterError as error:
            raise _quoting(node, error) from None

    return general


def _comparison_with(node: Comparison, left: Compute, constant: str | int) -> Ask:
    """Fast path for `property sign constant`: a value of the constant's type needs no further checks."""
    sign, operate = node.sign, COMPARE[node.sign]
    kind = str if isinstance(constant, str) else int
    is_plain = not isinstance(constant, bool)

    def with_constant(reading: Reading) -> bool | None:
        value = left(reading)
        if is_plain and isinstance(value, kind) and value.__class__ is not bool:
            return operate(value, constant)
        if value is None:
            return None
        try:
            return compare(sign, value, constant)
        except FilterError as error:
            raise _quoting(node, error) from None

    return with_constant


def _in(node: In, parameters: Parameters) -> Ask:
    left = compile_expression(node.left, parameters)
    known = [_known(option, parameters) for option in node.options]
    texts = [
        option.value for option in known if isinstance(option, Constant) and isinstance(option.value, str)
    ]
    # Only if all are strings: as keys in Python, TRUE equals 1, and 1 equals 1.0.
    words = frozenset(texts) if len(texts) == len(known) else frozenset()
    ask_each = disjunction(
        [_comparison(Comparison("=", node.left, option), parameters) for option in node.options]
    )

    def is_in(reading: Reading) -> bool | None:
        value = left(reading)
        if value is None:
            return None
        if words and isinstance(value, str):
            return value in words
        return ask_each(reading)

    return is_in


def _like(node: Like, parameters: Parameters) -> Ask:
    left = compile_expression(node.left, parameters)
    pattern = _known(node.pattern, parameters)
    escape = None if node.escape is None else _known(node.escape, parameters)
    if isinstance(pattern, Constant) and isinstance(escape, Constant | None):
        compiled = _like_constant(node, pattern, escape)

        def is_like(reading: Reading) -> bool | None:
            value = left(reading)
            if value is None or compiled is None:
                return None
            return _fits(node, reading, compiled, _string(node, "the left side", value))

        return is_like
    read_pattern = compile_expression(pattern, parameters)
    read_escape = None if escape is None else compile_expression(escape, parameters)

    def is_like_what_it_says(reading: Reading) -> bool | None:
        value, written = left(reading), read_pattern(reading)
        escaping = read_escape(reading) if read_escape else None
        if value is None or written is None or (read_escape and escaping is None):
            return None
        escaping = None if escaping is None else _string(node, "ESCAPE", escaping)
        text, written = _string(node, "the left side", value), _string(node, "the pattern", written)
        try:
            compiled = compile_like(written, escaping)
        except FilterError as error:
            raise _quoting(node, error) from None
        return _fits(node, reading, compiled, text)

    return is_like_what_it_says


def _fits(node: Like, reading: Reading, pattern: LikePattern, text: str) -> bool:
    if pattern.cost:
        try:
            if len(text) > TEXT_VALUE_LENGTH_MAX:
                raise FilterError(
                    f"the text has {len(text)} characters; LIKE searches at most {TEXT_VALUE_LENGTH_MAX}"
                )
            reading.spend(len(text) * pattern.cost)
        except FilterError as error:
            raise _quoting(node, error) from None
    return pattern.fits(text)


def _like_constant(node: Like, pattern: Constant, escape: Constant | None) -> LikePattern | None:
    """None if the result is unknown for every message. Refuses an invalid pattern, with its position."""
    if pattern.value is None or (escape is not None and escape.value is None):
        return None
    escaping = None if escape is None else escape.value
    if not isinstance(pattern.value, str):
        raise refusal(node.position, to_text(pattern), "a string as the pattern of LIKE")
    if not isinstance(escaping, str | None):
        raise refusal(node.position, to_text(node), "a string of one character after ESCAPE")
    try:
        return compile_like(pattern.value, escaping)
    except FilterError as error:
        raise refusal(node.position, to_text(node), f"a pattern that can be read: {error}") from None


def _exists(subject: Reference, parameters: Parameters) -> Ask:
    """A user property exists even if it is null; a system property exists if it is set."""
    match subject:
        case Property(name, "user"):
            return lambda reading: reading.has(name)
        case Property():
            value = compile_expression(subject, parameters)
            return lambda reading: value(reading) is not None
        case PropertyCall(argument):
            called = compile_expression(argument, parameters)

            def exists(reading: Reading) -> bool | None:
                named = called(reading)
                if named is None:
                    return None
                text = _string(subject, "the name", named)
                scope, rest = _split_scope(text)
                return reading.has(rest) if scope == "user" else _system(rest)(reading) is not None

            return exists


# -- values ---------------------------------------------------------------------


def _system(name: str) -> Compute:
    found = system_property(name)
    if found is None:
        # "An attempt to evaluate a non-existent system property throws a FilterException."
        def unknown(reading: Reading) -> Value:
            raise FilterError(f"there is no system property '{name}'")

        return unknown
    return lambda reading: reading.system(found)


def _property_by_name(reading: Reading, name: Value, node: PropertyCall) -> Value:
    if name is None:
        return None
    scope, rest = _split_scope(_string(node, "the name", name))
    return reading.get(rest) if scope == "user" else _system(rest)(reading)


def _split_scope(name: str) -> tuple[str, str]:
    for scope in _SCOPES:
        if name[: len(scope)].lower() == scope:
            return scope[:-1], name[len(scope) :]
    return "user", name


def _signed(node: Signed, parameters: Parameters) -> Compute:
    operand = compile_expression(node.operand, parameters)

    def with_sign(reading: Reading) -> Value:
        value = operand(reading)
        if value is None:
            return None
        try:
            return signed(node.sign, value)
        except FilterError as error:
            raise _quoting(node, error) from None

    return with_sign


def _arithmetic(node: Arithmetic, parameters: Parameters) -> Compute:
    first = compile_expression(node.first, parameters)
    steps = [(step.sign, compile_expression(step.operand, parameters)) for step in node.steps]

    def computed(reading: Reading) -> Value:
        value = first(reading)
        for sign, operand in steps:
            other = operand(reading)
            if value is None or other is None:
                return None
            try:
                value = arithmetic(sign, value, other)
            except FilterError as error:
                raise _quoting(node, error) from None
        return value

    return computed


# -- helpers --------------------------------------------------------------------


def _known(node: Expression, parameters: Parameters) -> Expression:
    """A parameter as the constant that it stands for; everything else unchanged."""
    if not isinstance(node, Parameter):
        return node
    folded = node.name.lower()
    if folded not in parameters:
        given = ", ".join(f"@{name}" for name in parameters) or "none"
        raise refusal(node.position, f"'@{node.name}'", f"a name among Parameters ({given})")
    return Constant(parameters[folded])


def _string(node: Node, role: str, value: Value) -> str:
    if isinstance(value, str):
        return value
    raise FilterError(f"{role} must be a string, not {type_name(value)}, in: {to_text(node)}")


def _quoting(node: Node, error: FilterError) -> FilterError:
    return FilterError(f"{error} in: {to_text(node)}")
