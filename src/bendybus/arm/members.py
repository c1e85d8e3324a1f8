"""The members of a JSON body: read with their types; unknown members are refused.

A client that sends a member expects an effect. If the server does not support a member, it is therefore an
error that names the member. Read-only members are ignored, because clients send back whole descriptions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar

from bendybus.errors import ArgumentError

__all__ = ["SHOWN_ONLY", "json_object", "member", "refuse_unknown"]

T = TypeVar("T")

# Of every resource.
SHOWN_ONLY: Final = ("id", "name", "type", "systemData", "etag")

_KINDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    str: "a string",
    dict: "an object",
    list: "a list",
}


def json_object(body: bytes) -> dict[str, Any]:
    """The object that a body is. An empty body is an empty object."""
    if not body.strip():
        return {}
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise ArgumentError("The body is not a JSON object.")
    try:
        json.dumps(read, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # A surrogate without its other half. It could be kept, but never be shown.
        raise ArgumentError("The body has a string with half of a surrogate pair.") from None
    return read


def member(given: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """The member of that name, in any case; None if it is missing or null."""
    value = next((value for known, value in given.items() if known.lower() == name.lower()), None)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ArgumentError(f"'{name}' must be {_KINDS[kind]}, not {json.dumps(value)[:60]}.")
    return value


def refuse_unknown(where: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """`ArgumentError` for a member that is not null and has none of these names, in any case."""
    names = {name.lower() for name in known}
    for name, value in given.items():
        if value is not None and name.lower() not in names:
            raise ArgumentError(f"{where} has the unknown member '{name[:60]}'.")
