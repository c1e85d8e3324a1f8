"""Splits the text of a filter or an action into tokens.

Every token has its position, counted from 1, for use in errors:
`refusal` makes the errors that say what was found and what was expected. The reserved words
are defined here. The grammar: parser.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bendybus.errors import ArgumentError

__all__ = [
    "RULE_WRITING",
    "TEXT_LENGTH_MAX",
    "TOKENS_MAX",
    "Kind",
    "Writing",
    "Token",
    "is_keyword",
    "refusal",
    "tokenize",
]

# "Maximum length of filter condition string: 1,024", and the same for an action.
TEXT_LENGTH_MAX: Final = 1024

# A list in IN has two tokens per element, and the shortest string takes four characters with its comma:
# 1,024 / 4 * 2.
TOKENS_MAX: Final = 512

# One more than the largest Int64, so that the parser can put a minus before it.
INTEGER_MAX: Final = 2**63

# SET and REMOVE are not keywords: no name can occur where they do, so `remove = 1` is still a condition.
KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "EXISTS", "TRUE", "FALSE")
)

# The maximum length of a text quoted in an error: enough to find it.
QUOTED_LENGTH_MAX: Final = 40


class Kind(Enum):
    """The kind of a token, as errors name it."""

    NAME = "a name"
    KEYWORD = "a keyword"
    PARAMETER = "a parameter"
    STRING = "a string"
    NUMBER = "a number"
    SIGN = "a sign"
    END = "the end"


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    """As written, except that keywords are in capitals, and names and strings have no quotes or brackets."""
    position: int
    """The position of its first character, counted from 1."""
    number: int | float = 0
    is_bare: bool = False
    """A name without quotes or brackets. Only such a name can be a scope or a function."""

    def __str__(self) -> str:
        if self.kind is Kind.END:
            return "the end of the text"
        shown = self.text if len(self.text) <= QUOTED_LENGTH_MAX else self.text[:QUOTED_LENGTH_MAX] + "..."
        match self.kind:
            case Kind.STRING:
                return f"the string '{shown}'"
            case Kind.PARAMETER:
                return f"'@{shown}'"
            case _:
                return f"'{shown}'"


@dataclass(frozen=True, slots=True)
class Writing:
    """How names and numbers are written. Selectors differ from rules here (selectors.py)."""

    name_starts: str = ""
    """Characters other than letters that may begin a name."""
    name_parts: str = "_"
    """Characters other than letters and digits that a name may contain."""
    java_numbers: bool = False
    """Whether integers may be octal or hexadecimal, or end with an L."""


RULE_WRITING: Final = Writing()


def refusal(position: int, found: object, expected: str) -> ArgumentError:
    """The error for a text that the language does not accept."""
    return ArgumentError(f"At position {position}: found {found}, expected {expected}.")


_SPACE: Final = re.compile(r"\s+")
_NUMBER: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# In rules, "0" itself and decimals are numbers too, unless they end with an L.
_JAVA_INTEGER: Final = re.compile(r"(?:0[xX][0-9a-fA-F]+[lL]?|0[0-7]+[lL]?|[0-9]+[lL])(?![\w.])")
_SIGN: Final = re.compile(r"<>|!=|>=|<=|[=<>+\-*/%(),.;]")

# Opening mark -> the closing mark (written twice inside the quotes), the kind, and what an error expects.
_QUOTES: Final = {
    "'": ("'", Kind.STRING, "a closing ' (a ' inside a string is written twice)"),
    '"': ('"', Kind.NAME, 'a closing " (a " inside a name is written twice)'),
    "[": ("]", Kind.NAME, "a closing ] (a ] inside a name is written twice)"),
}


def tokenize(text: str, writing: Writing = RULE_WRITING) -> list[Token]:
    """All tokens, followed by an END. `ArgumentError` for an invalid character and for too many tokens."""
    if len(text) > TEXT_LENGTH_MAX:
        raise ArgumentError(f"The text has {len(text)} characters; at most {TEXT_LENGTH_MAX} are allowed.")
    tokens: list[Token] = []
    at = 0
    while True:
        if space := _SPACE.match(text, at):
            at = space.end()
        if at == len(text):
            tokens.append(Token(Kind.END, "", at + 1))
            return tokens
        if len(tokens) == TOKENS_MAX:
            raise ArgumentError(f"At position {at + 1}: the text has more than {TOKENS_MAX} words and signs.")
        token, at = _next_token(text, at, writing)
        tokens.append(token)


def _next_token(text: str, at: int, writing: Writing) -> tuple[Token, int]:
    first = text[at]
    if first in _QUOTES:
        return _quoted(text, at)
    if first.isalpha() or first in writing.name_starts:
        end = _end_of_name(text, at, writing)
        word = text[at:end]
        if is_keyword(word):
            return Token(Kind.KEYWORD, word.upper(), at + 1), end
        return Token(Kind.NAME, word, at + 1, is_bare=True), end
    if first == "@":
        end = _end_of_name(text, at + 1, writing)
        if end == at + 1:
            raise refusal(at + 1, "'@'", "a parameter such as @name")
        return Token(Kind.PARAMETER, text[at + 1 : end], at + 1), end
    if writing.java_numbers and (integer := _JAVA_INTEGER.match(text, at)):
        return _java_integer(at, integer[0]), integer.end()
    if number := _NUMBER.match(text, at):
        return _number(text, at, number[0]), number.end()
    if sign := _SIGN.match(text, at):
        return Token(Kind.SIGN, sign[0], at + 1), sign.end()
    wanted = (
        "a name to begin with a letter, or in [brackets]" if first == "_" else "a name, value or operator"
    )
    raise refusal(at + 1, repr(first), wanted)


def is_keyword(word: str) -> bool:
    # Some letters outside ASCII have an ASCII capital: a Turkish dotless i would make an IN.
    return word.isascii() and word.upper() in KEYWORDS


def _end_of_name(text: str, at: int, writing: Writing) -> int:
    """The end of a name of letters, decimal digits and underscores (System.Char.IsLetter and IsDigit)."""
    parts = writing.name_parts
    while at < len(text) and (text[at].isalpha() or text[at].isdecimal() or text[at] in parts):
        at += 1
    return at


def _quoted(text: str, at: int) -> tuple[Token, int]:
    closing, kind, expected = _QUOTES[text[at]]
    start, end = at + 1, text.find(closing, at + 1)
    while end != -1 and text.startswith(closing, end + 1):
        end = text.find(closing, end + 2)
    if end == -1:
        raise refusal(at + 1, f"{text[at]} without its end", expected)
    inner = text[start:end].replace(closing * 2, closing)
    if kind is Kind.NAME and not inner:
        raise refusal(at + 1, f"'{text[at]}{closing}'", "a property name between them")
    return Token(kind, inner, at + 1), end + 1


def _number(text: str, at: int, digits: str) -> Token:
    end = at + len(digits)
    if end < len(text) and (text[end].isalpha() or text[end] in "_."):
        raise refusal(at + 1, f"'{digits}{text[end]}'", "a number to end before a letter")
    value: int | float = int(digits) if digits.isdecimal() else float(digits)
    if isinstance(value, int) and value > INTEGER_MAX:
        raise refusal(at + 1, digits[:QUOTED_LENGTH_MAX], f"an integer of at most {INTEGER_MAX - 1}")
    if value == float("inf"):
        raise refusal(at + 1, digits[:QUOTED_LENGTH_MAX], "a number within the range of a double")
    return Token(Kind.NUMBER, digits, at + 1, value)


def _java_integer(at: int, digits: str) -> Token:
    plain = digits.rstrip("lL")
    is_octal = len(plain) > 1 and plain[0] == "0" and plain.isdecimal()
    if is_octal and ("8" in plain or "9" in plain):
        raise refusal(at + 1, digits[:QUOTED_LENGTH_MAX], "octal digits after a leading 0")
    value = int(plain, 8) if is_octal else int(plain, 0)
    if value > INTEGER_MAX:
        raise refusal(at + 1, digits[:QUOTED_LENGTH_MAX], f"an integer of at most {INTEGER_MAX - 1}")
    return Token(Kind.NUMBER, digits, at + 1, value)
