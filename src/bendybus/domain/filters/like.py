"""LIKE patterns: `%` for any run of characters, `_` for any one, the rest for itself.

A pattern becomes one regular expression whose every run is atomic: it stops at
the first place where what follows fits and is never tried again. For patterns
made of runs and fixed pieces that finds a match whenever there is one, in time
text x pattern, where plain `.*` could take ages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from bendybus.errors import FilterError

__all__ = ["PATTERN_LENGTH_MAX", "compile_like"]

# A pattern in the text of a filter cannot be longer; one taken from a message may be.
PATTERN_LENGTH_MAX: Final = 1024


def compile_like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """Whether a text is like this; `FilterError` says what is wrong with the pattern."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise FilterError(f"the pattern of LIKE has {len(pattern)} characters; at most {PATTERN_LENGTH_MAX}")
    if escape is not None and len(escape) != 1:
        raise FilterError(f"the ESCAPE character '{escape[:40]}' has {len(escape)} characters, not one")
    first, *runs = _pieces(pattern, escape)
    if not runs:
        expression = first
    else:
        *middle, last = runs
        expression = first + "".join(f"(?>.*?{piece})" for piece in middle if piece) + f".*{last}"
    fits = re.compile(expression, re.DOTALL).fullmatch
    return lambda text: fits(text) is not None


def _pieces(pattern: str, escape: str | None) -> list[str]:
    """What stands between the `%`, each as a regular expression of fixed length."""
    pieces = [""]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise FilterError("the pattern of LIKE ends with its ESCAPE character")
            pieces[-1] += re.escape(escaped)
        elif character == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if character == "_" else re.escape(character)
    return pieces
