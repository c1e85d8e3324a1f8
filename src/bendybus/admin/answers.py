"""What all requests of the management API have in common: versions, pages, URLs, bodies, answers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from bendybus.admin import documents
from bendybus.atom import ENTRY_TYPE, FEED_TYPE, PAGE_MAX, document
from bendybus.broker.clock import now
from bendybus.errors import ArgumentError, PreconditionFailed
from bendybus.http_bodies import RequestBody
from bendybus.names import Instant

__all__ = ["Answers", "api_version", "is_update", "read_body"]

_API_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?(-preview)?")
_WHOLE_NUMBER: Final = re.compile("[0-9]{1,9}")

T = TypeVar("T")


class Answers:
    """Answers to one request, in its version of the API and under the name it called the server."""

    def __init__(self, request: Request, version: str, namespace: str) -> None:
        self._request = request
        self._namespace = namespace
        self.version = version
        self.with_rules: bool = request.state.manages
        """Whether to show authorization rules: they have their keys in them."""

    def entry(
        self, path: str, title: str, kind: str, content: str, created_at: Instant, updated_at: Instant
    ) -> str:
        url = self.url(path, {"api-version": self.version})
        return documents.entry(url, title, kind, content, created_at, updated_at, self._namespace)

    @staticmethod
    def one(entry: str, status: int = 200) -> Response:
        return Response(document(entry), status, media_type=ENTRY_TYPE)

    async def page(self, things: Sequence[T], entry: Callable[[T], Awaitable[str]]) -> Response:
        """As many of these as were asked for, and where the next ones are."""
        skip, top = self._number("$skip", 0), min(self._number("$top", PAGE_MAX), PAGE_MAX)
        path = self._request.path_params["path"]
        here = self.url(path, {"$skip": skip, "$top": top, "api-version": self.version})
        following = None
        if top and skip + top < len(things):
            following = self.url(path, {"$skip": skip + top, "$top": top, "api-version": self.version})
        entries = [await entry(thing) for thing in things[skip : skip + top]]
        body = document(documents.feed(here, path.rpartition("/")[2], now(), entries, following))
        return Response(body, media_type=FEED_TYPE)

    def url(self, path: str, query: dict[str, object]) -> str:
        """As the client sees this server: under the name it called, whatever that is."""
        host = self._request.headers.get("host", "localhost")
        shown = {name: value for name, value in query.items() if value != ""}
        scheme = self._request.scope["scheme"]
        return f"{scheme}://{host}/{quote(path)}" + (f"?{urlencode(shown)}" if shown else "")

    def forced(self) -> bool:
        """Whether a DELETE is to happen though partitions are unavailable: `?force=true`."""
        text = self._request.query_params.get("force")
        if text not in (None, "true", "false"):
            raise ArgumentError(f"force is '{text[:60]}'; it must be true or false.")
        return text == "true"

    def _number(self, name: str, default: int) -> int:
        text = self._request.query_params.get(name)
        if text is None:
            return default
        if not _WHOLE_NUMBER.fullmatch(text):
            raise ArgumentError(f"{name} is '{text[:60]}'; it must be a whole number.")
        return int(text)


def api_version(request: Request) -> str:
    """Versions compare as texts: none at all is older than any, and one to come is newer."""
    version = request.query_params.get("api-version", "")
    if version and not _API_VERSION.fullmatch(version):
        raise ArgumentError(f"api-version is '{version[:60]}'; it must be a month such as 2024-05.")
    return version


def is_update(request: Request) -> bool:
    """Whether a PUT is to change what is there, rather than to create it."""
    condition = request.headers.get("if-match")
    if condition is None:
        return False
    if condition.strip() != "*":
        raise PreconditionFailed(f"If-Match is '{condition[:60]}'; entities have no tags, so only * matches.")
    return True


async def read_body(request: Request, *kinds: str) -> documents.Described:
    """The description in the body, of one of these kinds."""
    body: RequestBody = request.state.body
    described = documents.parse_entry(await body.read_document(documents.BODY_BYTES_MAX))
    if described.kind not in kinds:
        raise ArgumentError(
            f"The entry describes a {described.kind[:60]}; expected a {' or a '.join(kinds)}."
        )
    return described
