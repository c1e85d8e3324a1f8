"""An entity's `$management`: any operation, with a map in and a map out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bendybus.amqp.types import UInt
from bendybus.client.refusals import refusal_of_status
from bendybus.client.requests import Requests
from bendybus.errors import ConnectionLost

if TYPE_CHECKING:
    from bendybus.client.client import BusClient

__all__ = ["Management"]


class Management:
    """Made by `BusClient.management`. Its links are attached by the first request."""

    def __init__(self, client: BusClient, entity: str) -> None:
        self.entity = entity
        self._client = client
        self._requests: Requests | None = None

    def request(
        self, operation: str, body: Mapping[str, object], *, timeout_s: float | None = None
    ) -> dict[Any, Any] | None:
        """Run one operation. Returns its answer, or None if the answer is empty (204).

        It is retried after a transient failure, so it may already have been executed when the retry fails.
        Use it for operations that may be repeated, or examine the error of the retry.
        """
        return self._client.retry(
            lambda: self.answer(self.ask(operation, body, timeout_s), operation, timeout_s)
        )

    def ask(self, operation: str, body: Mapping[str, object], timeout_s: float | None = None) -> str:
        """Send a request without waiting: pass the result to `answer`. Not retried."""
        timeout_s = self._client.settings.timeout_s if timeout_s is None else timeout_s
        properties = {"operation": operation, "com.microsoft:server-timeout": UInt(timeout_s * 1000)}
        return self._attached().ask(properties, dict(body))

    def answer(self, ticket: str, operation: str, timeout_s: float | None = None) -> dict[Any, Any] | None:
        if self._requests is None:
            raise ConnectionLost(f"'{operation}' was asked on a connection that has gone.")
        reply = self._requests.answer(ticket, timeout_s)
        told = reply.application_properties
        status = told.get("statusCode")
        code = status if isinstance(status, int) else 500
        if not 200 <= code < 300:
            what = f"'{operation}' at '{self.entity}'"
            raise refusal_of_status(code, told.get("errorCondition"), told.get("statusDescription"), what)
        return reply.value if code != 204 and isinstance(reply.value, dict) else None

    def _attached(self) -> Requests:
        channel = self._client.channel(self.entity)
        if self._requests is None or not self._requests.usable:
            self._requests = Requests(channel, f"{self.entity}/$management")
        return self._requests

    def close(self) -> None:
        if self._requests is not None and self._requests.usable:
            self._requests.close()
        self._requests = None
