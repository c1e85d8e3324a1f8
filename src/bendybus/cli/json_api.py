"""The server's own API, which speaks JSON: stores and faults. Azure has nothing like it.

Management of entities, which Azure has too: management.py.
"""

from __future__ import annotations

import http.client
import json
from typing import Any, Final

from bendybus.cli.target import Target
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    ConnectionLost,
    StoreNotFound,
    Unauthorized,
    Unavailable,
)

__all__ = ["ask_json"]

# Attaching a store may have to wait for a database that is far away.
TIMEOUT_S: Final = 60

_REFUSALS: Final[dict[int, type[BrokerError]]] = {
    401: Unauthorized,
    404: StoreNotFound,
    503: Unavailable,
}


def ask_json(target: Target, method: str, path: str, body: object = None) -> dict[str, Any]:
    """The answer to one request; a refusal is raised in the server's words."""
    connection = (
        http.client.HTTPConnection(target.host, target.http_port, timeout=TIMEOUT_S)
        if target.plain
        else http.client.HTTPSConnection(
            target.host, target.http_port, timeout=TIMEOUT_S, context=target.tls_context()
        )
    )
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {"Authorization": target.token()})
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionLost(f"{target.netloc} cannot be reached: {error}.") from error
    finally:
        connection.close()
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ArgumentError(f"{target.netloc} answered {response.status}, and not as a Bendybus server does.")
    if response.status >= http.client.BAD_REQUEST:
        raise _REFUSALS.get(response.status, ArgumentError)(str(answer.get("error", response.status)))
    return answer
