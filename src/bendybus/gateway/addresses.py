"""AMQP node addresses: which part of which entity a link means.

Clients write the same node as `q`, `/q` or `amqps://host:port/q`, percent-encoded
or not, in any case. This module only parses text; the broker knows whether the entity
exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote

from bendybus.domain.entities import split_subqueue
from bendybus.domain.messages import SubQueue
from bendybus.errors import ArgumentError, BrokerError, EntityNotFound

__all__ = ["Address", "NodeKind", "with_host"]

# "255 octets or less" [RFC 1035 2.3.4].
HOST_LENGTH_MAX: Final = 255
_PORT: Final = re.compile(":[0-9]*$")


class NodeKind(Enum):
    ENTITY = "entity"
    MANAGEMENT = "$management"
    CBS = "$cbs"


@dataclass(frozen=True, slots=True)
class Address:
    kind: NodeKind
    resource: str
    """The whole path, with its sub-queue: a token for exactly this path is enough."""
    path: str = ""
    """The entity's own part of it."""
    subqueue: SubQueue = SubQueue.MAIN

    @classmethod
    def parse(cls, text: object) -> Address:
        if not isinstance(text, str) or not text:
            raise ArgumentError(f"A link needs the address of a node, not {text!r}.")
        path = text
        if "://" in path:
            path = path.split("://", 1)[1].partition("/")[2]
        path = resource = unquote(path).strip("/")
        if path.lower() == "$cbs":
            return cls(NodeKind.CBS, resource)
        kind = NodeKind.ENTITY
        if path.lower().endswith("/$management"):
            kind = NodeKind.MANAGEMENT
            path = path[: -len("/$management")]
        return cls(kind, resource, *split_subqueue(path))


def with_host(refusal: BrokerError, host: str) -> BrokerError:
    """The refusal as the client sees it. An entity that does not exist is named by its address, as on Azure.

    Without the port, which Azure's addresses do not have: tests of the JavaScript SDK compare the text.
    """
    if not isinstance(refusal, EntityNotFound):
        return refusal
    return EntityNotFound(f"sb://{_PORT.sub('', host)[:HOST_LENGTH_MAX]}/{refusal.path}")
