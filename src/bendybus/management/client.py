"""The client of the management API: sends requests to a server, and raises refusals as errors.

Works against Azure too: it speaks the API's own version, signs as the SDKs do, and understands both answers
that servers give for a missing entity. The connection: http.py. The documents: entries.py. What is in them:
properties.py, filter_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final
from urllib.parse import quote, urlencode

from bendybus.atom import ENTRY_TYPE, PAGE_MAX
from bendybus.auth.connection_strings import ConnectionString
from bendybus.domain.properties import FORWARD_DEAD_LETTERED_TO, FORWARD_TO
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    EntityExists,
    EntityNotFound,
    NotSupported,
    PreconditionFailed,
    QuotaExceeded,
    RequestError,
    ServerBusy,
    Unauthorized,
    Unavailable,
)
from bendybus.management.entries import Entry, Feed, entry_body, error_detail, read_answer
from bendybus.management.http import Answer, HttpClient

__all__ = ["NAMESPACE", "QUEUES", "TOPICS", "ManagementClient"]

# The first with the filter counts of topics.
API_VERSION: Final = "2024-05"

# Paths that are no entity's.
NAMESPACE: Final = "$namespaceinfo"
QUEUES: Final = "$Resources/queues"
TOPICS: Final = "$Resources/topics"

_REFUSALS: Final[Mapping[int, type[BrokerError]]] = {
    400: ArgumentError,
    401: Unauthorized,
    403: QuotaExceeded,
    409: EntityExists,
    412: PreconditionFailed,
    501: NotSupported,
    503: ServerBusy,
}

_FORWARDING: Final = {
    f"<{FORWARD_TO.name}>".encode(): "ServiceBusSupplementaryAuthorization",
    f"<{FORWARD_DEAD_LETTERED_TO.name}>".encode(): "ServiceBusDlqSupplementaryAuthorization",
}


class ManagementClient:
    """One connection to a namespace's management API: `with ManagementClient(namespace) as client: ...`"""

    def __init__(self, namespace: ConnectionString, certificate: str | None = None) -> None:
        """`certificate` is a file to trust besides the system's certificates."""
        self._http = HttpClient(namespace, certificate)

    def __enter__(self) -> ManagementClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str) -> Entry:
        answer = read_answer(self._request("GET", path))
        # Azure answers with an empty feed if the entity does not exist.
        if isinstance(answer, Feed):
            raise EntityNotFound(path)
        return answer

    def list(self, path: str) -> Iterator[Entry]:
        """Everything in a list, page after page."""
        skip, more = 0, True
        while more:
            page = read_answer(self._request("GET", path, {"$skip": skip, "$top": PAGE_MAX}))
            if not isinstance(page, Feed):
                raise EntityNotFound(path)
            yield from page.entries
            skip, more = skip + PAGE_MAX, page.more

    def create(self, path: str, kind: str, children: Iterable[str]) -> Entry:
        return self._put(path, kind, children)

    def update(self, path: str, kind: str, children: Iterable[str]) -> Entry:
        """Replace the whole description."""
        return self._put(path, kind, children, {"If-Match": "*"})

    def delete(self, path: str, *, force: bool = False) -> None:
        """`force`: even while a messaging store is unavailable. Only Bendybus supports this."""
        self._request("DELETE", path, {"force": "true"} if force else None)

    def _put(
        self, path: str, kind: str, children: Iterable[str], headers: Mapping[str, str] | None = None
    ) -> Entry:
        body = entry_body(kind, children)
        sent = {"Content-Type": ENTRY_TYPE, **(headers or {})}
        # Azure wants proof that a client that sets up forwarding may also send to the destination.
        sent |= {header: self._http.token() for tag, header in _FORWARDING.items() if tag in body}
        answer = read_answer(self._request("PUT", path, body=body, headers=sent))
        assert isinstance(answer, Entry), "a PUT is answered with the entry that was put"
        return answer

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        url = f"/{quote(path)}?{urlencode({**(query or {}), 'api-version': API_VERSION})}"
        answer = self._http.request(method, url, body, headers)
        if answer.status >= 400:
            raise _refusal(answer.status, error_detail(answer.content) or _reason(answer, path), path)
        return answer.content


def _reason(answer: Answer, path: str) -> str:
    """For an answer without a body. That is how a key without the Manage right is refused."""
    return f"The key has no Manage right on '{path}'" if answer.status == 401 else answer.reason


def _refusal(status: int, detail: str, path: str) -> BrokerError:
    if status in (404, 410):
        return EntityNotFound(path)
    detail = detail.rstrip(".") + "."
    kind = _REFUSALS.get(status)
    if kind is not None:
        return kind(detail)
    return Unavailable(f"{status}: {detail}") if status >= 500 else RequestError(f"{status}: {detail}")
