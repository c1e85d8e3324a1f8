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

    POST   /{entity}/sessions                                accept the next free session with messages
    POST   /{entity}/sessions/{session}                      accept this session
    POST   /{entity}/sessions/{session}/{lock}               renew its lock
    DELETE /{entity}/sessions/{session}/{lock}               release it
    GET    /{entity}/sessions/{session}/{lock}/state         its state; PUT sets it and DELETE removes it

Below `/{entity}/sessions/{session}/{lock}`, `/messages/...` is about the messages of the session, in all of
these ways except sending.

`messages`, `head`, `sessions` and sub-queues are recognised in any case. This module only parses text;
the broker knows whether the entity exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
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
    ACCEPT_SESSION = "accept a session"
    RENEW_SESSION = "renew a session"
    RELEASE_SESSION = "release a session"
    GET_STATE = "get the state of a session"
    SET_STATE = "set the state of a session"
    CLEAR_STATE = "remove the state of a session"

    @property
    def right(self) -> Right:
        return Right.SEND if self is Operation.SEND else Right.LISTEN


_GUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")

_AT_HEAD: Final = {"POST": Operation.PEEK_LOCK, "DELETE": Operation.RECEIVE_AND_DELETE}
_AT_NUMBER: Final = {"POST": Operation.LOCK_DEFERRED, "DELETE": Operation.TAKE_DEFERRED}
_BELOW_LOCK: Final = {"defer": Operation.DEFER, "deadletter": Operation.DEAD_LETTER}
_AT_SESSION_LOCK: Final = {"POST": Operation.RENEW_SESSION, "DELETE": Operation.RELEASE_SESSION}
_AT_STATE: Final = {
    "GET": Operation.GET_STATE,
    "PUT": Operation.SET_STATE,
    "DELETE": Operation.CLEAR_STATE,
}
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
    session_id: str = ""
    session_lock: str = ""
    """A GUID, if the request is about a session that the client holds."""

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
        return cls._of_session(method, segments, path)

    @classmethod
    def _of_session(cls, method: str, segments: list[str], path: str) -> RestCall | None:
        lower = [segment.lower() for segment in segments]
        if method == "POST" and lower[-1:] == ["sessions"]:
            return cls._of(Operation.ACCEPT_SESSION, segments[:-1], path)
        if method == "POST" and lower[-2:-1] == ["sessions"]:
            call = cls._of(Operation.ACCEPT_SESSION, segments[:-2], path)
            return None if call is None else replace(call, session_id=segments[-1])
        if _holds_session(segments) and method in _AT_SESSION_LOCK:
            return cls._of(_AT_SESSION_LOCK[method], segments, path)
        if lower[-1:] == ["state"] and _holds_session(segments[:-1]) and method in _AT_STATE:
            return cls._of(_AT_STATE[method], segments[:-1], path)
        return None

    @classmethod
    def _of(
        cls, operation: Operation, entity: list[str], path: str, message: str = "", lock_token: str = ""
    ) -> RestCall | None:
        session_id = session_lock = ""
        if operation is not Operation.SEND and _holds_session(entity):
            entity, (session_id, session_lock) = entity[:-3], entity[-2:]
        name, subqueue = split_subqueue("/" + "/".join(entity))
        if len(name) <= 1:
            return None
        return cls(operation, name[1:], subqueue, path, message, lock_token, session_id, session_lock)


def _holds_session(segments: list[str]) -> bool:
    """Whether a path ends in `/sessions/{session}/{lock}`."""
    return len(segments) > 3 and segments[-3].lower() == "sessions" and bool(_GUID.fullmatch(segments[-1]))


def _is_number(text: str) -> bool:
    """A sequence number: up to 63 bits."""
    return text.isascii() and text.isdigit() and int(text[:20]) < 1 << 63
