r"""REST calls: which operation a request asks for, by its verb and the end of its path.

    POST   /{entity}/messages                     send
    POST   /{entity}/messages/head                peek-lock
    DELETE /{entity}/messages/head                receive and delete
    POST   /{entity}/messages/{message}/{lock}    renew the lock
    PUT    /{entity}/messages/{message}/{lock}    unlock
    DELETE /{entity}/messages/{message}/{lock}    complete

These are ours; Azure has nothing like them:

    POST   /{entity}/messages/{message}/{lock}/defer         defer
    POST   /{entity}/messages/{message}/{lock}/deadletter    dead-letter
    POST   /{entity}/messages/deferred/{number}              peek-lock a deferred message
    DELETE /{entity}/messages/deferred/{number}              receive and delete a deferred message

`messages`, `head` and sub-queues are recognized in any case. This module only parses text;
the broker knows whether the entity exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote

from bendybus.auth.rights import Right
from bendybus.domain.entities import split_subqueue
from bendybus.domain.messages import SubQueue

__all__ = ["Operation", "RestCall"]


class Operation(Enum):
    SEND = "send"
    PEEK_LOCK = "peek-lock"
    RECEIVE_AND_DELETE = "receive and delete"
    RENEW = "renew"
    UNLOCK = "unlock"
    COMPLETE = "complete"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"
    LOCK_DEFERRED = "peek-lock a deferred message"
    TAKE_DEFERRED = "receive and delete a deferred message"

    @property
    def right(self) -> Right:
        return Right.SEND if self is Operation.SEND else Right.LISTEN


_AT_HEAD: Final = {"POST": Operation.PEEK_LOCK, "DELETE": Operation.RECEIVE_AND_DELETE}
_AT_NUMBER: Final = {"POST": Operation.LOCK_DEFERRED, "DELETE": Operation.TAKE_DEFERRED}
_BELOW_LOCK: Final = {"defer": Operation.DEFER, "deadletter": Operation.DEAD_LETTER}
_AT_LOCK: Final = {"POST": Operation.RENEW, "PUT": Operation.UNLOCK, "DELETE": Operation.COMPLETE}


@dataclass(frozen=True, slots=True)
class RestCall:
    """What a request asks for."""

    operation: Operation
    entity: str
    subqueue: SubQueue
    path: str
    """The request's own path, still encoded: clients may sign exactly this."""
    message: str = ""
    """Its id or its sequence number."""
    lock_token: str = ""

    @classmethod
    def parse(cls, method: str, path: str) -> RestCall | None:
        """The call of a request with this (encoded) path; None if it is not a REST call."""
        segments = [unquote(segment) for segment in path.split("/") if segment]
        lower = [segment.lower() for segment in segments]
        if method == "POST" and lower[-1:] == ["messages"]:
            return cls._of(Operation.SEND, segments[:-1], path)
        if lower[-2:] == ["messages", "head"]:
            at_head = _AT_HEAD.get(method)
            return None if at_head is None else cls._of(at_head, segments[:-2], path)
        if lower[-3:-1] == ["messages", "deferred"] and _is_number(lower[-1]):
            at_number = _AT_NUMBER.get(method)
            return None if at_number is None else cls._of(at_number, segments[:-3], path, segments[-1])
        if lower[-4:-3] == ["messages"] and method == "POST" and lower[-1] in _BELOW_LOCK:
            return cls._of(_BELOW_LOCK[lower[-1]], segments[:-4], path, *segments[-3:-1])
        if lower[-3:-2] == ["messages"] and method in _AT_LOCK:
            return cls._of(_AT_LOCK[method], segments[:-3], path, *segments[-2:])
        return None

    @classmethod
    def _of(
        cls, operation: Operation, entity: list[str], path: str, message: str = "", lock_token: str = ""
    ) -> RestCall | None:
        name, subqueue = split_subqueue("/" + "/".join(entity))
        if len(name) <= 1:
            return None
        return cls(operation, name[1:], subqueue, path, message, lock_token)


def _is_number(text: str) -> bool:
    """A sequence number: up to 63 bits."""
    return text.isascii() and text.isdigit() and int(text[:20]) < 1 << 63
