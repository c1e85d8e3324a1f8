"""Resource URIs and addresses as paths, so that scopes can be compared.

A path here is lower case, without scheme, host, port, query or outer slashes;
the empty path is the namespace. A path covers itself and everything below it,
segment by segment: `orders` covers `orders/$management` and not `orders2`.
Rules, tokens and claims all compare through this module and no other way.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from bendybus.errors import Unauthorized

__all__ = ["ancestry", "covers", "entity_path", "resource_path"]

# Entity paths stop at 260 characters; `/Subscriptions/`, `/$Transfer/$DeadLetterQueue` and
# percent-encoding come on top. Longer ones are no entity's.
PATH_LENGTH_MAX = 2048

# A link's path is looked at when it is attached and once a second. This many take two megabytes at most.
PATHS_KEPT: Final = 1024


def resource_path(uri: str) -> str:
    """The path of a decoded resource URI: `sb://host:5672/Orders?x=1` gives `orders`.

    Without a scheme the text begins with the host: HTTP clients sign the bare host too.
    """
    uri = uri.partition("?")[0].partition("#")[0].replace("\\", "/")
    scheme, separator, rest = uri.partition("://")
    # A path or a query may hold another URI, which is not the resource.
    has_scheme = separator and "/" not in scheme
    _, _, path = (rest if has_scheme else uri).partition("/")
    return entity_path(path)


@lru_cache(maxsize=PATHS_KEPT)
def entity_path(path: str) -> str:
    """A path inside the namespace in comparable form; refuses what could mean another place.

    `.` and `..` are never part of an entity's name. Resolving them could only lead
    out of the scope that was granted, so they are refused, however encoded.
    """
    if len(path) > PATH_LENGTH_MAX:
        raise Unauthorized(f"The resource path is longer than {PATH_LENGTH_MAX} characters.")
    # No entity's name holds a percent sign, so decoding until nothing changes cannot
    # turn one entity into another, and `%252e%252e` is seen for what it is.
    while (decoded := unquote(path)) != path:
        path = decoded
    segments = [segment for segment in path.replace("\\", "/").lower().split("/") if segment]
    if "." in segments or ".." in segments:
        raise Unauthorized(f"The resource path '{path}' contains '.' or '..', which no entity's name may.")
    return "/".join(segments)


def covers(scope: str, path: str) -> bool:
    """Whether `path` is `scope` or lies below it; both as this module's functions return them."""
    return not scope or path == scope or path.startswith(scope + "/")


def ancestry(path: str) -> Iterator[str]:
    """The path itself, then everything that covers it, up to the namespace."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield ""
