"""Refusals of REST requests, in the one shape that clients of the HTTP API read.

    <Error>
      <Code>404</Code>
      <Detail>SubCode=40400. text TrackingId:…, SystemTracker:…, Timestamp:…</Detail>
    </Error>

Status and text come from the error itself (errors.py).
"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4
from xml.sax.saxutils import escape

from starlette.responses import Response

from bendybus.errors import BrokerError

__all__ = ["error_response", "fault_response"]

# XML has no way to write these [XML 1.0 section 2.2], and our texts quote what clients send.
_UNWRITABLE = dict.fromkeys(
    (*range(0x20), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\N{REPLACEMENT CHARACTER}"
)


def error_response(error: BrokerError, path: str) -> Response:
    """The answer to a request that is refused; `path` says of what."""
    return _response(error.status, error.description, path)


def fault_response(path: str) -> Response:
    """The answer to an internal error, without details."""
    return _response(500, "The server was unable to process the request; please retry the operation.", path)


def _response(status: int, text: str, path: str) -> Response:
    detail = (
        f"SubCode={status}00. {text} TrackingId:{uuid4()}, SystemTracker:{path[:260]}, "
        f"Timestamp:{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"
    )
    body = f"<Error><Code>{status}</Code><Detail>{escape(detail.translate(_UNWRITABLE))}</Detail></Error>"
    return Response(body, status, media_type="application/xml")
