"""The server's own API, which speaks JSON: stores and faults. Azure has nothing like it.

Management of entities, which Azure has too: client.py.
"""

from __future__ import annotations

import json
from typing import Any, Final

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import ArgumentError, BrokerError, StoreNotFound, Unauthorized, Unavailable
from bendybus.management.http import HttpClient

__all__ = ["ask_json"]

_REFUSALS: Final[dict[int, type[BrokerError]]] = {
    401: Unauthorized,
    404: StoreNotFound,
    503: Unavailable,
}


def ask_json(
    namespace: ConnectionString, method: str, path: str, body: object = None, certificate: str | None = None
) -> dict[str, Any]:
    """The answer to one request; a refusal is raised in the server's words."""
    http = HttpClient(namespace, certificate)
    try:
        given = http.request(method, path, None if body is None else json.dumps(body).encode())
    finally:
        http.close()
    try:
        answer = json.loads(given.content.decode("utf-8", "replace"))
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ArgumentError(f"{namespace.netloc} answered {given.status}, and not as a Bendybus server does.")
    if given.status >= 400:
        raise _REFUSALS.get(given.status, ArgumentError)(str(answer.get("error", given.status)))
    return answer
