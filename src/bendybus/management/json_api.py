"""The server's own API, which speaks JSON: stores, faults, policies, connections. Azure has nothing like it.

Management of entities, which Azure has too: client.py.
"""

from __future__ import annotations

import json
from typing import Any, Final

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    NotSupported,
    RuleNotFound,
    StoreNotFound,
    Unauthorized,
    Unavailable,
)
from bendybus.management.entries import error_detail
from bendybus.management.http import HttpClient

__all__ = ["ask_json"]

_REFUSALS: Final[dict[int, type[BrokerError]]] = {
    401: Unauthorized,
    404: StoreNotFound,
    501: NotSupported,
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
    if given.status == 200 and not given.content:
        return {}
    try:
        answer = json.loads(given.content.decode("utf-8", "replace"))
    except ValueError:
        answer = None
    if not isinstance(answer, dict) and given.status >= 400 and (detail := error_detail(given.content)):
        # Routes that belong to the management API refuse in its words.
        raise {**_REFUSALS, 404: RuleNotFound}.get(given.status, ArgumentError)(detail.rstrip(".") + ".")
    if not isinstance(answer, dict):
        raise ArgumentError(f"{namespace.netloc} answered {given.status}, and not as a Bendybus server does.")
    if given.status >= 400:
        raise _REFUSALS.get(given.status, ArgumentError)(str(answer.get("error", given.status)))
    return answer
