"""What all requests of the management API share: versions, pages, URLs, bodies, answers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from bendybus.admin import documents
from bendybus.admin.paths import Child
from bendybus.amqp.dotnet import ticks_of_instant
from bendybus.atom import ENTRY_TYPE, FEED_TYPE, PAGE_MAX
from bendybus.broker.clock import now
from bendybus.broker.topic import SendTarget
from bendybus.domain.properties import FIRST_WITH_PARTITIONS
from bendybus.errors import HELP_LINK, ArgumentError, InvalidOperation, PreconditionFailed
from bendybus.http_bodies import RequestBody
from bendybus.names import Instant

__all__ = [
    "READING",
    "Answers",
    "api_version",
    "called_host",
    "entity_tag",
    "invalid_verb",
    "is_update",
    "read_body",
    "refuse_old_version",
    "unchanged_since",
]

_API_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?(-preview)?")
_WHOLE_NUMBER: Final = re.compile("[0-9]{1,9}")

# Methods that change nothing.
READING: Final = ("GET", "HEAD")

T = TypeVar("T")


class Answers:
    """Answers to one request, in its API version and with the server name that it used."""

    def __init__(self, request: Request, version: str, namespace: str) -> None:
        self._request = request
        self._namespace = namespace
        self._path: str = request.path_params["path"].strip("/")
        self._lists = False
        self.version = version

    def entry(
        self,
        path: str,
        title: str,
        kind: str,
        content: str,
        created_at: Instant,
        updated_at: Instant,
    ) -> str:
        is_child = Child.parse(path) is not None
        author = "" if is_child else self._namespace
        place = self._listed(path, title, is_child) if self._lists else self._alone(is_child)
        return documents.entry(place, title, kind, content, created_at, updated_at, author)

    def _alone(self, is_child: bool) -> documents.EntryAddress:
        """The path is in the case of the request. Subscriptions and rules are read at an `sb` address."""
        scheme = "sb" if is_child and self._request.method in READING else ""
        return documents.EntryAddress.alone(self.url(self._path, self._request.url.query, scheme))

    def _listed(self, path: str, title: str, is_child: bool) -> documents.EntryAddress:
        link = f"{self._path.rpartition('/')[2]}/{title}" if is_child else f"../{path}"
        query = f"api-version={self.version}" if self.version else ""
        return documents.EntryAddress(
            self.url(f"{self._path}/{title}" if is_child else path, query),
            quote(link, safe="/$") + (f"?{query}" if query else ""),
            self.url(self._path, self._request.url.query),
        )

    @staticmethod
    def one(entry: str, status: int = 200) -> Response:
        return Response(entry, status, media_type=ENTRY_TYPE)

    @staticmethod
    def nothing() -> Response:
        return Response(documents.no_services(now()), media_type=FEED_TYPE)

    async def page(self, things: Sequence[T], entry: Callable[[T], Awaitable[str]]) -> Response:
        """One page of these, and the link to the next page."""
        self._lists = True
        skip, top = self._number("$skip", 0), min(self._number("$top", PAGE_MAX), PAGE_MAX)
        path, asked = self._request.path_params["path"], self._request.query_params
        following = None
        if top and skip + top < len(things):
            rest = [each for each in asked.multi_items() if each[0] not in ("$skip", "$top")]
            following = self.url(path, urlencode([("$skip", skip + top), ("$top", top), *rest]))
        entries = [await entry(thing) for thing in things[skip : skip + top]]
        title = self._path.rpartition("/")[2].capitalize()
        here = self.url(path, self._request.url.query)
        return Response(documents.feed(here, title, now(), entries, following), media_type=FEED_TYPE)

    def url(self, path: str, query: str, scheme: str = "") -> str:
        """URLs of this server as the client sees it: with the name that the client used."""
        host, scheme = called_host(self._request), scheme or self._request.scope["scheme"]
        return f"{scheme}://{host}/{quote(path, safe='/$')}" + (f"?{query}" if query else "")

    def forced(self) -> bool:
        """Whether to delete even if partitions are unavailable: `?force=true`."""
        text = self._request.query_params.get("force")
        if text not in (None, "true", "false"):
            raise ArgumentError(f"force is '{text[:60]}'; it must be true or false.")
        return text == "true"

    def _number(self, name: str, default: int) -> int:
        text = self._request.query_params.get(name)
        if text is None:
            return default
        if not _WHOLE_NUMBER.fullmatch(text):
            bare = name.removeprefix("$")
            raise ArgumentError(
                f"{name} is '{text[:60]}'; it must be a whole number.",
                azure=f"Parameter '{bare}' should be non-negative integer.\r\nParameter name: {bare}.",
            )
        return int(text)


def api_version(request: Request) -> str:
    """Versions compare as texts. No version is older than any, and a future one is newer."""
    version = request.query_params.get("api-version", "")
    if version and not _API_VERSION.fullmatch(version):
        raise ArgumentError(f"api-version is '{version[:60]}'; it must be a month such as 2024-05.")
    return version


def called_host(request: Request) -> str:
    """The name under which the client called this server, with the port if it gave one."""
    return request.headers.get("host", "localhost")


def invalid_verb(method: str, reason: str) -> InvalidOperation:
    return InvalidOperation(reason, azure=f"The specified HTTP verb ({method}) is not valid. {HELP_LINK} .")


def refuse_old_version(statement: str, version: str) -> None:
    """Versions that are older than partitions cannot make, see or delete partitioned entities (P-10)."""
    if version < FIRST_WITH_PARTITIONS:
        raise ArgumentError(
            f"{statement}; that needs api-version={FIRST_WITH_PARTITIONS} or later, and this request has "
            f"{version or 'none'}."
        )


def entity_tag(entity: SendTarget | None) -> str:
    """Of a queue or topic and of what is below it: the ticks when it was last updated. Empty for none."""
    return "" if entity is None else str(ticks_of_instant(entity.updated_at))


def is_update(request: Request, entity: SendTarget | None) -> bool:
    """Whether a PUT updates an entity instead of creating it.

    `entity` is the queue or topic that the path begins with. One that does not exist is not found later.
    """
    condition = request.headers.get("if-match")
    if condition is None:
        return False
    if entity is not None and not _is_any(condition) and _bare(condition) != entity_tag(entity):
        raise PreconditionFailed(
            f"If-Match is '{condition[:60]}', and the tag of '{entity.path}' is {entity_tag(entity)}: "
            "it has been updated since it was read."
        )
    return True


def unchanged_since(request: Request, entity: SendTarget) -> Instant | None:
    """The condition of an update, as the broker checks it once more: others may update at the same time."""
    return None if _is_any(request.headers.get("if-match", "*")) else entity.updated_at


def _is_any(condition: str) -> bool:
    return condition.strip() == "*"


def _bare(condition: str) -> str:
    """A tag without the quotes that Azure leaves out and HTTP asks for."""
    return condition.strip().removeprefix("W/").strip('"')


async def read_body(request: Request, *kinds: str) -> documents.EntryContent:
    """The description in the body, of one of these kinds."""
    body: RequestBody = request.state.body
    described = documents.parse_entry(await body.read_document(documents.BODY_BYTES_MAX))
    if described.kind not in kinds:
        raise ArgumentError(
            f"The entry describes a {described.kind[:60]}; expected a {' or a '.join(kinds)}."
        )
    return described
