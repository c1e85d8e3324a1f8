"""HTTP from somebody who wants to do harm, or cannot do better: an answer of 4xx, and nobody else notices.

Whatever is sent, the server logs no traceback, answers nothing with 500 and goes on serving the
bystander (conftest.py). `make fuzz` tries many more examples.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bendybus.auth.sas import make_token
from bendybus.domain.properties import QUEUE
from fix_client import Endpoint
from fix_examples import examples
from hostile.conftest import UnderAttack

# A server on the same machine that has not answered by then never will.
ANSWER_TIMEOUT_S: Final = 10.0

# What a queue is described by over HTTP.
PROPERTIES: Final = [each.name for each in QUEUE]

FUZZED: Final = settings(
    max_examples=examples(400),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

# Given to requests whose end nobody can tell: what has not been answered by then waits for more of them.
UNFINISHED_S: Final = 0.02

ENTRY: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">{}</QueueDescription>'
    "</content></entry>"
)
QUERY: Final = "?api-version=2021-05"


def token() -> str:
    """Manages what is below `fuzz`, and so nothing that others use."""
    return make_token("sb://127.0.0.1/fuzz", "fuzzer", "key-of-the-fuzzer", int(time.time()) + 600)


def request(
    method: str = "PUT",
    path: str | bytes = f"/fuzz/x{QUERY}",
    body: bytes = b"",
    headers: list[tuple[bytes, bytes]] | None = None,
    length: bytes | None = None,
) -> bytes:
    target = path.encode("latin-1") if isinstance(path, str) else path
    lines = [
        b"%s %s HTTP/1.1" % (method.encode(), target),
        b"Host: h",
        b"Authorization: " + token().encode(),
        b"Content-Length: " + (length if length is not None else b"%d" % len(body)),
        *(b"%s: %s" % header for header in headers or []),
    ]
    return b"\r\n".join([*lines, b"", body])


def call(endpoint: Endpoint, data: bytes, timeout_s: float = ANSWER_TIMEOUT_S) -> bytes:
    """What is answered until the server hangs up, its answer is whole, or the time is over."""
    with socket.create_connection((endpoint.host, endpoint.port), timeout=ANSWER_TIMEOUT_S) as connection:
        connection.settimeout(timeout_s)
        answer = b""
        with suppress(OSError):
            connection.sendall(data)
        try:
            while not is_whole(answer, bodiless=data.startswith(b"HEAD ")) and (
                piece := connection.recv(1 << 16)
            ):
                answer += piece
        except TimeoutError:
            assert timeout_s < ANSWER_TIMEOUT_S, f"no answer to {data[:200]!r}"
        except OSError:
            pass
        return answer


HEAD: Final = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n(.*?)\r\n\r\n", re.DOTALL)
LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def is_whole(answer: bytes, *, bodiless: bool = False) -> bool:
    head = HEAD.match(answer)
    if head is None:
        return False
    length = None if bodiless else LENGTH.search(head[2])
    return len(answer) >= head.end() + (int(length[1]) if length else 0)


def judged(answer: bytes, allowed: Callable[[int], bool] = lambda status: status < 400) -> int:
    """The status: 4xx with an Error document, 501, or one that is `allowed`; nothing else is answered."""
    head = HEAD.match(answer)
    assert head is not None, answer
    status = int(head[1])
    if allowed(status):
        return status
    assert 400 <= status < 500 or status == 501, answer
    document = ElementTree.fromstring(answer[head.end() :])
    assert (document.tag, document.findtext("Code")) == ("Error", str(status))
    assert document.findtext("Detail")
    return status


def never(status: int) -> bool:
    return False


# -- what is known to do harm elsewhere --------------------------------------------------------

LAUGHS: Final = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(12))
    + "]><entry><content><QueueDescription><UserMetadata>&m;</UserMetadata></QueueDescription></content>"
    "</entry>"
)
OUTSIDE: Final = (
    '<!DOCTYPE e [<!ENTITY x SYSTEM "{}">]><entry><content><QueueDescription>'
    "<UserMetadata>&x;</UserMetadata></QueueDescription></content></entry>"
)

BODIES: Final[dict[str, bytes]] = {
    "nothing": b"",
    "billion laughs": LAUGHS.encode(),
    "quadratic blow-up": (
        f'<!DOCTYPE e [<!ENTITY x "{"x" * 50_000}">]>'
        f"<entry><content><Q>{'&x;' * 20_000}</Q></content></entry>"
    ).encode(),
    "a file": OUTSIDE.format("file:///etc/passwd").encode(),
    "a server inside": OUTSIDE.format("http://127.0.0.1:1/").encode(),
    "parameter entities": b'<!DOCTYPE e [<!ENTITY % p SYSTEM "http://127.0.0.1:1/x"> %p;]><entry/>',
    "deep": b"<a>" * 80_000,
    "deep and closed": b"<a>" * 30_000 + b"</a>" * 30_000,
    "many attributes": b"<entry " + b" ".join(b'a%d="x"' % n for n in range(20_000)) + b"/>",
    "one attribute twice": b'<entry a="1" a="2"/>',
    "many namespaces": b"".join(b'<a xmlns:n%d="u:%d">' % (n, n) for n in range(5000)),
    "ten megabytes": b"<entry>" + b" " * 10_000_000 + b"</entry>",
    "not XML": b"\x00\x01\x02" * 100,
    "UTF-16": ENTRY.format("").encode("utf-16")[:-1],
    "wrong encoding": b'<?xml version="1.0" encoding="utf-16"?><entry/>',
    "unknown encoding": b'<?xml version="1.0" encoding="x-none"?><entry/>',
    "UTF-7": b'<?xml version="1.0" encoding="utf-7"?>+ADw-entry+AD4-',
    "bad UTF-8": b"<entry>\xff\xfe</entry>",
    "a NUL": b"<entry>\x00</entry>",
    "CDATA": b"<entry><![CDATA[" + b"]]" * 1000 + b"</entry>",
    "another description": ENTRY.replace("QueueDescription", "FishDescription").format("").encode(),
    "JSON": b'{"entry": {}}',
    "an element twice": ENTRY.format("<Status>Active</Status><Status>Active</Status>").encode(),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_is_known_to_do_harm_is_refused(
    under_attack: UnderAttack, endpoint: Endpoint, name: str
) -> None:
    def work() -> None:
        answer = call(endpoint, request(path=f"/fuzz/harm{QUERY}", body=BODIES[name]))
        assert judged(answer, never) in (400, 413)
        assert b"root:" not in answer

    async with under_attack():
        await asyncio.to_thread(work)


@pytest.mark.parametrize("name", [*PROPERTIES, "AuthorizationRules"])
async def test_a_property_of_the_wrong_type_is_refused(
    under_attack: UnderAttack, endpoint: Endpoint, name: str
) -> None:
    free = {"UserMetadata", "ForwardTo", "ForwardDeadLetteredMessagesTo"}
    wrong = ["9" * 5000, "<x/>", "&#xfffd;" * 2000] + (
        [] if name in free else ["-1", "NaN", "1e999", "P", "\u0661"]
    )

    def work() -> None:
        for text in wrong:
            body = ENTRY.format(f"<{name}>{text}</{name}>").encode()
            # An element where a text should be is an empty text, which says nothing.
            allowed = (
                (lambda status: status in (201, 409))
                if text == "<x/>" or name == "AuthorizationRules"
                else never
            )
            judged(call(endpoint, request(path=f"/fuzz/{name}{QUERY}", body=body)), allowed)

    async with under_attack():
        await asyncio.to_thread(work)


CHUNKED: Final = b"PUT /fuzz/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
BY_HAND: Final[dict[str, bytes]] = {
    "no version": b"GET /fuzz/x\r\n\r\n",
    "version 3": b"GET /fuzz/x HTTP/3.0\r\n\r\n",
    "no path": b"GET  HTTP/1.1\r\n\r\n",
    "a star": b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
    "an authority": b"GET h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
    "a whole URL": b"GET http://h/fuzz/x HTTP/1.1\r\nHost: h\r\n\r\n",
    "no host": b"GET /fuzz/x HTTP/1.1\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    "a header with a space": b"GET / HTTP/1.1\r\nHo st: x\r\n\r\n",
    "a header folded": b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
    "a NUL in a header": b"GET / HTTP/1.1\r\nA: \0\r\n\r\n",
    "a NUL in the path": b"GET /\0 HTTP/1.1\r\n\r\n",
    "bytes in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: h\r\n\r\n",
    "bad escapes": request(path="/fuzz/x%%%zz%", method="DELETE"),
    "escaped bytes": request(path="/fuzz/x%ff%fe%00", method="GET"),
    "escaped bytes of a rule": request(path="/fuzz/x/$authorizationRules/%ff%00", method="GET"),
    "a length below nothing": request(length=b"-1"),
    "a length of words": request(length=b"many"),
    "a length too long": request(length=b"9" * 40),
    "two lengths": request(headers=[(b"Content-Length", b"5")], body=b"x"),
    "a length and chunks": request(
        headers=[(b"Transfer-Encoding", b"chunked")], body=b"0\r\n\r\nGET / HTTP/1.1"
    ),
    "chunks of a length below nothing": CHUNKED + b"-5\r\nhello",
    "chunks of no length": CHUNKED + b"zz\r\nhello\r\n",
    "chunks too long to count": CHUNKED + b"f" * 40 + b"\r\n",
    "another transfer encoding": b"PUT /fuzz/x HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nx",
    "a head of many headers": request(headers=[(b"x-%d" % n, b"y" * 50) for n in range(5000)]),
    "a head of one long header": request(headers=[(b"x", b"y" * 300_000)]),
    "a long path": request(path="/fuzz/" + "x" * 60_000, method="GET"),
    "an unknown verb": b"GET / HTTP/1.1\r\nHost: h\r\n\r\nBREW /fuzz/x HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", BY_HAND)
async def test_a_request_that_is_not_http_is_refused(
    under_attack: UnderAttack, endpoint: Endpoint, name: str
) -> None:
    def work() -> None:
        assert judged(call(endpoint, BY_HAND[name]), never) != 500

    async with under_attack():
        await asyncio.to_thread(work)


# -- what nobody has thought of ----------------------------------------------------------------

names = st.sampled_from(["entry", "content", "QueueDescription", "AuthorizationRules", "Rights", *PROPERTIES])
texts = st.one_of(
    st.text(max_size=30),
    st.integers().map(str),
    st.sampled_from(
        ["true", "PT1M", "P1D", "-P1D", "PT" + "9" * 50 + "S", "1024", "&lt;", "&#0;", "&x;", "]]>"]
    ),
)


def as_element(parts: tuple[str, list[str]]) -> str:
    return f"<{parts[0]}>{''.join(parts[1])}</{parts[0]}>"


elements = st.recursive(
    texts, lambda inner: st.tuples(names, st.lists(inner, max_size=4)).map(as_element), max_leaves=12
)
documents = st.one_of(
    elements.map(str.encode),
    st.lists(elements, max_size=4).map(lambda children: ENTRY.format("".join(children)).encode()),
    st.tuples(elements, st.sampled_from(["utf-16", "utf-32", "utf-8-sig", "latin-1"])).map(
        lambda pair: ENTRY.format(pair[0]).encode(pair[1], "replace")
    ),
    st.binary(max_size=200),
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["rights", "primaryKey", "secondaryKey", "which", "key", "Body", "BrokerProperties"]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)
bodies = documents | values.map(lambda value: json.dumps(value).encode())
tails = st.sampled_from(
    [
        "",
        "/y",
        "/messages",
        "/messages/head",
        "/messages/1/2",
        "/$DeadLetterQueue/messages/head",
        "/$authorizationRules",
        "/$authorizationRules/r",
        "/$authorizationRules/r/regenerateKey",
        "/subscriptions/s",
    ]
)
queries = st.sampled_from(
    [
        "",
        "?api-version=2021-05",
        "?api-version=x",
        "?timeout=0",
        "?timeout=nan",
        "?timeout=-1",
        "?$top=x&$skip=-1",
    ]
) | st.text("abc=&%$?;01", max_size=12).map("?timeout=0&".__add__)
verbs = st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"])
header_values = st.binary(max_size=60).map(lambda data: re.sub(rb"[\x00-\x08\x0a-\x1f\x7f]", b"", data))
headers = st.lists(
    st.tuples(
        st.sampled_from(
            [b"BrokerProperties", b"Content-Type", b"If-Match", b"x-custom", b"Range", b"Expect"]
        ),
        header_values
        | values.map(lambda value: json.dumps(value).encode())
        | st.sampled_from([b"*", b"application/vnd.microsoft.servicebus.json", b"Mon, 99 Foo 2026"]),
    ),
    max_size=3,
)


async def test_no_request_however_odd_is_answered_with_500(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    @FUZZED
    @given(verbs, tails, queries, headers, bodies)
    def each(method: str, tail: str, query: str, sent: list[tuple[bytes, bytes]], body: bytes) -> None:
        # Waiting for a message is not what is tried here.
        if tail.endswith("head") and "timeout=0" not in query:
            query = "?timeout=0"
        answer = call(endpoint, request(method, f"/fuzz/x{tail}{query}", body, sent))
        if method == "HEAD":
            head = HEAD.match(answer)
            assert head is not None and int(head[1]) < 500
        elif not answer.startswith(b"HTTP/1.1 100"):
            judged(answer)

    async with under_attack():
        await asyncio.to_thread(each)


async def test_no_description_however_odd_is_answered_with_500(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    @FUZZED
    @given(documents, st.booleans())
    def each(body: bytes, updates: bool) -> None:
        sent = [(b"If-Match", b"*")] if updates else []
        judged(call(endpoint, request(path=f"/fuzz/x{QUERY}", body=body, headers=sent)))

    async with under_attack():
        await asyncio.to_thread(each)


async def test_no_bytes_however_odd_harm_anybody(under_attack: UnderAttack, endpoint: Endpoint) -> None:
    good = request(body=ENTRY.format("").encode())
    chunked = CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"

    @FUZZED
    @given(
        st.sampled_from([good, chunked, b"GET / HTTP/1.1\r\n\r\n", b"POST /fuzz/x/messages HTTP/1.1\r\n"]),
        st.lists(
            st.tuples(st.integers(0, len(good)), st.integers(0, 8), st.binary(max_size=12)),
            min_size=1,
            max_size=4,
        ),
    )
    def each(whole: bytes, changes: list[tuple[int, int, bytes]]) -> None:
        data = bytearray(whole)
        for at, length, instead in changes:
            data[at : at + length] = instead
        # Nobody can say whether the request is at its end, so an answer is only looked for.
        answer = call(endpoint, bytes(data), UNFINISHED_S)
        if is_whole(answer) and not answer.startswith(b"HTTP/1.1 1"):
            judged(answer)

    async with under_attack():
        await asyncio.to_thread(each)
