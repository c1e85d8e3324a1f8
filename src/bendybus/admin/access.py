"""Who may make an HTTP request: its SharedAccessSignature against the namespace's keys.

HTTP keeps no connection to remember claims on, so every request brings its token
and every request is checked. A token reaches the path it was signed for and all
below it; clients sign the namespace, the entity or the very URL they call.
"""

from __future__ import annotations

from collections.abc import Mapping

from bendybus.auth.claims import Claims, put_token
from bendybus.auth.rights import Right
from bendybus.auth.rules import KeyRing
from bendybus.errors import Unauthorized
from bendybus.names import Instant

__all__ = ["authorise"]


def authorise(headers: Mapping[str, str], keys: KeyRing, path: str, right: Right, now: Instant) -> None:
    """Raise `Unauthorized` unless the request's token gives `right` over `path` at this time."""
    token = next((value for name, value in headers.items() if name.lower() == "authorization"), None)
    if token is None:
        raise Unauthorized("The request has no Authorization header; a SharedAccessSignature is needed.")
    claims = Claims()
    claims.add(put_token(keys, token.strip(), f"https://namespace/{path.lstrip('/')}", now), now)
    claims.require(path, right, now)
