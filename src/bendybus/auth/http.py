"""Who may make an HTTP request: the token in its Authorization header.

An HTTP connection keeps no claims, so each request has a token. Clients sign the namespace,
the entity or the URL that they call. How a token is verified and what it covers:
auth/claims.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bendybus import audit
from bendybus.auth.claims import put_token
from bendybus.auth.key_ring import KeyRing
from bendybus.auth.rights import Right
from bendybus.errors import Unauthorized
from bendybus.names import Instant

__all__ = ["authorise"]

MISSING_TOKEN: Final = 40102


def authorise(
    headers: Mapping[str, str], keys: KeyRing, path: str, right: Right | None, now: Instant
) -> Right:
    """The rights that the request has over `path`.

    `Unauthorized` unless the one asked for is among them; None asks for any right at all.
    """
    token = next((value for name, value in headers.items() if name.lower() == "authorization"), None)
    if token is None:
        audit.record("token-refused", reason="no-token", resource=path)
        raise Unauthorized(
            "The request has no Authorization header; a SharedAccessSignature or a Bearer token is needed.",
            sub_code=MISSING_TOKEN,
        )
    # The host does not count: clients reach one server under many names.
    claim = put_token(keys, token.strip(), f"sb://namespace/{path.lstrip('/')}", now)
    audit.enter(by=claim.holder)
    if right is not None and not claim.rights.allows(right):
        audit.record("operation-refused", reason="no-right", resource=path, right=right.label)
        raise Unauthorized(
            f"Unauthorized access. '{right.label}' claim(s) are required to perform this operation. "
            f"Resource: '{path}'"
        )
    return claim.rights
