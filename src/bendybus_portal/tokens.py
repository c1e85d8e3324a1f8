"""Tokens of an identity provider: their claims, before the server has checked them. Pure.

The portal only shows a token's name and forgets the session when the token ends. With every request, the
server decides whether it is genuine and what it may do.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

from bendybus.auth.sas import SAS_PREFIX

__all__ = ["TokenFacts", "facts_of", "is_token"]

# A JSON object in base64 begins with these letters.
_JWT: Final = re.compile(r"eyJ[\w-]*\.eyJ[\w-]*\.[\w-]*")

# Whom a token was made out to, the most readable first. [RFC 7519 4.1; OpenID Connect 5.1; Entra]
_NAMES: Final = ("preferred_username", "upn", "email", "name", "app_displayname", "appid", "client_id", "sub")


@dataclass(frozen=True, slots=True)
class TokenFacts:
    name: str
    ends_at: float | None
    """In seconds since 1970; None if it does not say."""


def is_token(text: str) -> bool:
    return text.startswith(SAS_PREFIX) or _JWT.fullmatch(text) is not None


def facts_of(token: str) -> TokenFacts:
    if token.startswith(SAS_PREFIX):
        fields = parse_qs(token[len(SAS_PREFIX) :].strip())
        return TokenFacts(fields.get("skn", ["token"])[0], _instant(fields.get("se", [""])[0]))
    claims: object = None
    try:
        content = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
    except (IndexError, ValueError, RecursionError):
        pass
    if not isinstance(claims, dict):
        return TokenFacts("token", None)
    names = (claims.get(name) for name in _NAMES)
    name = next((each for each in names if isinstance(each, str) and each), "token")
    return TokenFacts(name[:100], _instant(claims.get("exp")))


def _instant(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
