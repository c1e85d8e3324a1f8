"""The management API as its client: requests to a server, refusals as our own errors.

Standard library only, so a command starts quickly. Works against Azure too: it speaks
the API's own version, signs as the SDKs do, and reads a missing entity either way that
a server may say it. The documents: entries.py.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final
from urllib.parse import quote, urlencode

from bendybus.cli.entries import Entry, Feed, entry_body, error_detail, read_answer
from bendybus.cli.target import Target
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    ConnectionLost,
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

__all__ = ["ManagementClient"]

# The first with MaxMessageSizeInKilobytes, and known to every server there is.
API_VERSION: Final = "2024-05"
ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"

# "default 100 per page; cap 100"
PAGE: Final = 100
TIMEOUT_S: Final = 60
# A page of 100 entries has some 300 KB.
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024

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
    b"<ForwardTo>": "ServiceBusSupplementaryAuthorization",
    b"<ForwardDeadLetteredMessagesTo>": "ServiceBusDlqSupplementaryAuthorization",
}


class ManagementClient:
    """One connection to a namespace's management API: `with ManagementClient(target) as client: ...`"""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection = _connection(target)

    def __enter__(self) -> ManagementClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def get(self, path: str) -> Entry:
        answer = read_answer(self._request("GET", path))
        # Azure answers for what does not exist with an empty feed.
        if isinstance(answer, Feed):
            raise EntityNotFound(path)
        return answer

    def list(self, path: str) -> Iterator[Entry]:
        """Everything in a list, page after page."""
        skip, more = 0, True
        while more:
            page = read_answer(self._request("GET", path, {"$skip": skip, "$top": PAGE}))
            if not isinstance(page, Feed):
                raise EntityNotFound(path)
            yield from page.entries
            skip, more = skip + PAGE, page.more

    def create(self, path: str, kind: str, children: Iterable[str]) -> Entry:
        return self._put(path, kind, children)

    def update(self, path: str, kind: str, children: Iterable[str]) -> Entry:
        """Put the whole description over the one that is there."""
        return self._put(path, kind, children, {"If-Match": "*"})

    def delete(self, path: str) -> None:
        self._request("DELETE", path)

    def _put(
        self, path: str, kind: str, children: Iterable[str], headers: Mapping[str, str] | None = None
    ) -> Entry:
        body = entry_body(kind, children)
        sent = {"Content-Type": ENTRY_TYPE, **(headers or {})}
        # Azure wants to see that who forwards may also send to the destination.
        sent |= {header: self._target.token() for tag, header in _FORWARDING.items() if tag in body}
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
        token = self._target.token()
        try:
            self._connection.request(method, url, body, {"Authorization": token, **(headers or {})})
            answer = self._connection.getresponse()
            content = answer.read(ANSWER_BYTES_MAX)
            # Whatever is left would be read as the next answer.
            if not answer.isclosed():
                self._connection.close()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise _unreachable(self._target, error) from error
        if answer.status >= 400:
            raise _refusal(answer.status, error_detail(content) or answer.reason, path)
        return content


def _connection(target: Target) -> http.client.HTTPConnection:
    if target.plain:
        return http.client.HTTPConnection(target.host, target.http_port, timeout=TIMEOUT_S)
    return http.client.HTTPSConnection(
        target.host, target.http_port, timeout=TIMEOUT_S, context=target.tls_context()
    )


def _unreachable(target: Target, error: Exception) -> BrokerError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Unauthorized(f"The certificate of {target.netloc} is not trusted: {error.verify_message}.")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConnectionLost(f"{target.netloc} cannot be reached: {reason or type(error).__name__}.")


def _refusal(status: int, detail: str, path: str) -> BrokerError:
    if status in (404, 410):
        return EntityNotFound(path)
    detail = detail.rstrip(".") + "."
    kind = _REFUSALS.get(status)
    if kind is not None:
        return kind(detail)
    return Unavailable(f"{status}: {detail}") if status >= 500 else RequestError(f"{status}: {detail}")
