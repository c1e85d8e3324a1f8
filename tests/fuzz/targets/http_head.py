"""HTTP requests: heads, bodies, headers that become a message (`server/http_protocol.py`, `rest/`)."""

from __future__ import annotations

import httptools
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bendybus.admin.documents import error_response
from bendybus.auth.http import authorise
from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.domain.entities import QueueDescription
from bendybus.errors import BrokerError
from bendybus.http_bodies import RequestBody
from bendybus.names import EntityPath, Instant
from bendybus.rest.calls import RestCall
from bendybus.rest.headers import HEADER_SPELLINGS
from bendybus.rest.messages import admit_request, show
from fuzz.still_loop import answers_to
from fuzz.target import Target

QUEUE = QueueDescription(EntityPath("queue"))
KEYS = KeyRing([AccessRule.root("key-of-the-root-rule")])
AT = Instant(1_800_000_000_000)
BODY_BYTES_MAX = 64 * 1024


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """What the message routes do with a request, in short; what is refused gets an Error document."""
    body = RequestBody(receive, Request(scope).headers.get("content-length"))
    try:
        if scope["type"] == "websocket":
            raise AssertionError("the input is no WebSocket's")
        response = await _answer(scope, body)
    except BrokerError as refusal:
        response = error_response(refusal, scope["path"], AT)
    if not await body.discard():
        response.headers["connection"] = "close"
    await response(scope, receive, send)


async def _answer(scope: Scope, body: RequestBody) -> Response:
    request = Request(scope)
    _ = (request.query_params, request.url.path, request.cookies)
    RestCall.parse(scope["method"], scope["raw_path"].decode("ascii", "replace"))
    if "authorization" in request.headers:
        authorise(request.headers, KEYS, scope["path"], None, AT)
    payload = await body.read(BODY_BYTES_MAX, "The body is too long.")
    spellings = scope["extensions"][HEADER_SPELLINGS]
    headers = [(spelled, value) for spelled, (_, value) in zip(spellings, scope["headers"], strict=True)]
    admitted = admit_request(headers, payload, AT, QUEUE, partitioned=True)
    message = admitted.messages[0]
    assert message.payload is not None
    shown = show(message, message.payload, locked=False)
    response = Response(shown.body)
    response.raw_headers += shown.headers
    return response


def check(data: bytes) -> None:
    _check_answers(answers_to(app, data))


class _Answers:
    def __init__(self) -> None:
        self.count = 0

    def on_message_begin(self) -> None:
        self.count += 1


def _check_answers(written: bytes) -> None:
    """Our answers are HTTP, whatever was asked; the last one may be cut off."""
    if written:
        answers = _Answers()
        httptools.HttpResponseParser(answers).feed_data(written)
        assert answers.count
        assert b" 500 " not in written[:20]


TARGET = Target(
    name="http_head",
    parses="HTTP requests: heads, bodies, headers that become a message",
    check=check,
    may_raise=(),
    share=14,
    length_max=2048,
    words=tuple(
        word.encode()
        for word in (
            *(
                "GET ",
                "POST ",
                "PUT ",
                "HTTP/1.1\r\n",
                "HTTP/1.0\r\n",
                "\r\n\r\n",
                "Host: localhost\r\n",
                "%00",
            ),
            *("Content-Length: ", "Transfer-Encoding: chunked\r\n", "0\r\n\r\n", "Expect: 100-continue\r\n"),
            *(
                "BrokerProperties: {",
                '"TimeToLive":',
                '"ScheduledEnqueueTimeUtc":',
                '"SessionId":',
                "Connection: ",
            ),
            *(
                "Authorization: ",
                "SharedAccessSignature ",
                "Content-Type: application/vnd.microsoft.servicebus.json",
            ),
            *(
                '[{"Body":"',
                '"UserProperties":{',
                "keep-alive",
                "close",
                "upgrade",
                "/queue/messages",
                "head?timeout=",
            ),
        )
    ),
)
