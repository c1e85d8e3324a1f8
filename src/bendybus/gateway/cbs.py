"""`$cbs`: a client proves what it may do by putting tokens.

The answers use this node's own spelling of the status keys. A token is judged
by its text: some SDKs put SAS tokens under the name of another kind. A good token
for an entity that does not exist is answered with 404, as on Azure, so that SDKs
name the entity instead of retrying.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bendybus import audit
from bendybus.amqp.types import Int
from bendybus.auth.claims import Claim, put_token
from bendybus.auth.key_ring import KeyRing
from bendybus.auth.paths import ancestry
from bendybus.broker.clock import now
from bendybus.broker.entities import Entities
from bendybus.domain.entities import normalise_path
from bendybus.errors import ArgumentError, BrokerError, EntityNotFound, NotSupported
from bendybus.gateway.addresses import with_host
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
        entities: Callable[[], Entities],
    ) -> None:
        self._keys_for = keys_for
        """The keys that may have signed a token. The first token may determine the namespace."""
        self._accept = accept
        """Takes the claim of a token that was accepted."""
        self._actor = actor
        self._entities = entities
        """The entities of the namespace, which is known once a token was accepted."""

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
            # The client has proved who it is, whether the entity exists or not.
            self._accept(claim)
            if _is_missing(claim.path_prefix, self._entities()):
                host, _, path = audience.partition("://")[2].partition("/")
                raise with_host(EntityNotFound(path), host)
        except BrokerError as error:
            logger.info("put-token refused: %s", error.description)
            return _status(error.status, error.description)
        return _status(202, "Accepted")


def _is_missing(path: str, entities: Entities) -> bool:
    """Whether no entity is at this path, above it or below it.

    A part of an entity is below it: a sub-queue, `$management`, a subscription that may not exist. A
    token for the beginning of a path reaches all entities below that.
    """
    if not path or path.startswith("$"):
        return False
    if any(entities.look_up(each) is not None for each in ancestry(path)):
        return False
    return not any(normalise_path(each.path).startswith(f"{path}/") for each in entities)


def _status(code: int, description: str) -> Response:
    # Without an error condition: where there is one, the Python SDK shows neither status nor description.
    return Response({"status-code": Int(code), "status-description": description}, None)
