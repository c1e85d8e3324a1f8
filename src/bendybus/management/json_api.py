"""The JSON API that only Bendybus has: stores, faults, policies, connections.

Management of entities, which Azure has too: client.py.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Final

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    ConnectionLost,
    NotSupported,
    RuleNotFound,
    StoreNotFound,
    Unauthorized,
    Unavailable,
)
from bendybus.management.entries import error_detail
from bendybus.management.http import Answer, HttpClient

__all__ = ["JsonApi", "ask_json"]

# A page asks for one thing at a time, and a person seldom has more than a few pages open.
IDLE_MAX: Final = 4

_REFUSALS: Final[dict[int, type[BrokerError]]] = {
    401: Unauthorized,
    404: StoreNotFound,
    501: NotSupported,
    503: Unavailable,
}


def ask_json(
    namespace: ConnectionString, method: str, path: str, body: object = None, certificate: str | None = None
) -> dict[str, Any]:
    """The answer to one request; a refusal is raised with the server's message."""
    api = JsonApi(namespace, certificate)
    try:
        return api.ask(method, path, body)
    finally:
        api.close()


class JsonApi:
    """Requests from any number of threads, over connections that are kept for the next request."""

    def __init__(self, namespace: ConnectionString, certificate: str | None = None) -> None:
        self._namespace = namespace
        self._certificate = certificate
        self._idle: list[HttpClient] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections that wait. The next request opens one again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for http in idle:
            http.close()

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body).encode()
        with self._lock:
            kept = self._idle.pop() if self._idle and method == "GET" else None
        http = kept or HttpClient(self._namespace, self._certificate)
        try:
            given = http.request(method, path, content)
        except ConnectionLost:
            # The server closes connections that wait for long, and perhaps has just done so.
            if kept is None:
                raise
            given = http.request(method, path, content)
        with self._lock:
            # A client that is refused will hardly ask again.
            keep = given.status < 400 and len(self._idle) < IDLE_MAX
            if keep:
                self._idle.append(http)
        if not keep:
            http.close()
        return self._read(given)

    def _read(self, given: Answer) -> dict[str, Any]:
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
            raise ArgumentError(
                f"{self._namespace.netloc} answered {given.status}, and not as a Bendybus server does."
            )
        if given.status >= 400:
            raise _REFUSALS.get(given.status, ArgumentError)(str(answer.get("error", given.status)))
        return answer
