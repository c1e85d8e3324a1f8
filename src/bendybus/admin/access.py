"""Who may manage: the token in a request's Authorization header.

HTTP keeps no connection that could hold claims, so each request proves itself
anew. Changes need Manage; to look, any right over the path will do. How a token
is proven and how far it reaches: auth/claims.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bendybus.auth.claims import put_token
from bendybus.auth.rights import Right
from bendybus.auth.rules import KeyRing
from bendybus.errors import Unauthorized
from bendybus.names import Instant

__all__ = ["authorise"]

MISSING_TOKEN: Final = 40102


def authorise(
    headers: Mapping[str, str], keys: KeyRing, path: str, right: Right | None, now: Instant
) -> None:
    """Raise `Unauthorized` unless the request may do this to `path`; None asks for any right at all."""
    token = headers.get("authorization")
    if token is None:
        raise Unauthorized(
            "The request has no Authorization header; a SharedAccessSignature is needed.",
            sub_code=MISSING_TOKEN,
        )
    # The host does not count: clients reach one server under many names.
    claim = put_token(keys, token, f"sb://namespace/{path}", now)
    if right is not None and not claim.rights.allows(right):
        raise Unauthorized(
            f"Unauthorized access. '{right.label}' claim(s) are required to perform this operation. "
            f"Resource: '{path}'"
        )
