"""The connections of a namespace as people see them: who is connected, from where, with which links."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from bendybus.engine.link import Link
from bendybus.engine.sending import SendingLink
from bendybus.gateway.connection import AmqpConnection
from bendybus.gateway.gateway import Gateway
from bendybus.namespaces import Namespace

__all__ = ["ConnectionList"]

# A client may have thousands of links; the first ones say what it does.
LINKS_SHOWN_MAX: Final = 50
CONNECTIONS_SHOWN_MAX: Final = 1000

CLOSED_BY_OPERATOR: Final = "An operator has closed the connection."


class ConnectionList:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def list(self, namespace: Namespace) -> list[dict[str, Any]]:
        """Oldest first."""
        of_namespace = [each for each in self._gateway.connections if each.client.namespace is namespace]
        return [_shown(each) for each in of_namespace[:CONNECTIONS_SHOWN_MAX]]

    def close(self, namespace: Namespace, number: str) -> str | None:
        """The address of the client whose connection was closed; None if there is no such connection."""
        for connection in self._gateway.connections:
            if connection.client.namespace is namespace and connection.number == number:
                peer = connection.peer
                connection.shut_down(CLOSED_BY_OPERATOR)
                return peer
        return None


def _shown(connection: AmqpConnection) -> dict[str, Any]:
    client = connection.client
    product = client.properties.get("product", client.properties.get("platform", ""))
    attachments = connection.links.attachments
    return {
        "id": connection.number,
        "peer": connection.peer,
        "container": client.container_id[:200],
        "product": str(product)[:200],
        "key": connection.actor().by,
        "since": connection.since,
        "linkCount": len(attachments),
        "links": [
            _shown_link(link, attachment.resource)
            for link, attachment in islice(attachments.items(), LINKS_SHOWN_MAX)
        ],
    }


def _shown_link(link: Link, resource: str) -> dict[str, object]:
    sends = isinstance(link, SendingLink)
    return {
        "name": link.name[:200],
        "entity": resource,
        # From the client's side.
        "role": "receiver" if sends else "sender",
        "credit": getattr(link, "credit", 0),
        # Serial numbers of 32 bits: rates are their differences.
        "messages": int(getattr(link, "delivery_count", 0)),
    }
