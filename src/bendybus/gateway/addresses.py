"""AMQP node addresses: which part of which entity a link means.

Clients write the same node as `q`, `/q` or `amqps://host:port/q`, percent-encoded
or not, in any case. This module only parses text; the broker knows whether the entity
exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

from bendybus.domain.entities import split_subqueue
from bendybus.domain.messages import SubQueue
from bendybus.errors import ArgumentError

__all__ = ["Address", "NodeKind"]


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
