"""`$cbs`: a client proves what it may do by putting tokens.

The answers use this node's own spelling of the status keys. A token is judged
by its text: some SDKs put SAS tokens under the name of another kind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bendybus import audit
from bendybus.amqp.types import Int, Symbol
from bendybus.auth.claims import Claim, put_token
from bendybus.auth.key_ring import KeyRing
from bendybus.broker.clock import now
from bendybus.errors import ArgumentError, BrokerError, NotSupported
from bendybus.gateway.requests import Request, Response

__all__ = ["CbsNode"]

logger = logging.getLogger(__name__)


class CbsNode:
    """The `$cbs` node of one connection."""

    def __init__(
        self,
        keys_for: Callable[[str], KeyRing],
        accept: Callable[[Claim], None],
        actor: Callable[[], audit.Actor],
    ) -> None:
        self._keys_for = keys_for
        """The keys that may have made a token: the first one may tell which namespace is meant."""
        self._accept = accept
        """Takes what a good token claims."""
        self._actor = actor

    def handle(self, request: Request) -> Response:
        try:
            if request.operation != "put-token":
                raise NotSupported(f"The operation '{request.operation}' is unknown at $cbs.")
            audience, token = request.properties.get("name"), request.body
            if not isinstance(audience, str) or not isinstance(token, str):
                raise ArgumentError(
                    "put-token needs the token's text as its body and its audience as 'name'."
                )
            keys = self._keys_for(token)
            with audit.acting(self._actor()):
                claim = put_token(keys, token, audience, now())
            self._accept(claim)
        except BrokerError as error:
            logger.info("put-token refused: %s", error.description)
            return _status(error.status, error.description, error.condition)
        return _status(202, "Accepted")


def _status(code: int, description: str, condition: str | None = None) -> Response:
    properties: dict[str, object] = {"status-code": Int(code), "status-description": description}
    if condition is not None:
        properties["error-condition"] = Symbol(condition)
    return Response(properties, None)
