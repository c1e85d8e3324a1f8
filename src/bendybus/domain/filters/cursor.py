"""A position in the tokens of a text: look at the next token, take it, or refuse it.

Every refusal names the position, what was found there and what was expected. The grammar: parser.py.
"""

from __future__ import annotations

from bendybus.domain.filters.lexer import Kind, Token, Writing, refusal, tokenize
from bendybus.errors import ArgumentError

__all__ = ["TokenCursor"]


class TokenCursor:
    def __init__(self, text: str, writing: Writing) -> None:
        self._tokens = tokenize(text, writing)
        self._index = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._index]

    @property
    def at_end(self) -> bool:
        return self.next.kind is Kind.END

    def take(self) -> Token:
        token = self._tokens[self._index]
        if token.kind is not Kind.END:
            self._index += 1
        return token

    def skip(self, text: str) -> bool:
        """Take the next token if it is this sign or keyword."""
        token = self.next
        is_it = token.kind in (Kind.SIGN, Kind.KEYWORD) and token.text == text
        if is_it:
            self.take()
        return is_it

    def expect(self, text: str, expected: str | None = None) -> None:
        """`skip`, or an error if another token follows."""
        if not self.skip(text):
            raise self.refuse(expected or f"'{text}'")

    def is_word(self, *words: str) -> bool:
        return self.next.is_bare and self.next.text.upper() in words

    def following_is(self, word: str) -> bool:
        """Whether the token after the next one is this word."""
        following = self._tokens[min(self._index + 1, len(self._tokens) - 1)]
        return following.is_bare and following.text.upper() == word

    def refuse(self, expected: str) -> ArgumentError:
        return refusal(self.next.position, self.next, expected)
