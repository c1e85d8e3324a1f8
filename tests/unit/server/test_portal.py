"""The portal behind the server's one port: who reaches it, how it is started, and what passes through.

Pages themselves are tested in a browser (`make browser`).
"""

from __future__ import annotations

import asyncio
import html
import http.client
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest

from bendybus.server import portal as portal_module
from bendybus.server.portal import REQUESTS_MAX, Portal, PortalTarget, is_for_portal
from fix_processes import BENDYBUS
from fix_server import ServerProcess, StartServer

LISTENS = {"Name": "Listens", "PrimaryKey": "key-of-those-who-listen", "Rights": ["Listen"]}


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/portal", {}, True),
        ("/portal/", {}, True),
        ("/portal/entity", {}, True),
        ("/portals", {}, False),
        ("/orders", {}, False),
        ("/portal", {"authorization": "SharedAccessSignature sr=..."}, False),
        ("/portal/messages", {"authorization": "Bearer ey..."}, False),
        ("/portal", {"authorization": "Basic dXNlcjpwYXNz"}, True),
    ],
)
def test_a_browser_reaches_the_portal_and_a_client_reaches_an_entity_of_that_name(path, headers, expected):
    assert is_for_portal(path, headers) is expected


class Answers:
    """What an application sends, as ASGI has it."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    async def send(self, message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")


async def no_body():
    return {"type": "http.request", "body": b"", "more_body": False}


def scope(path: str = "/portal/") -> dict:
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"x-forwarded-for", b"1.2.3.4")],
        "scheme": "http",
        "client": ("127.0.0.1", 5),
    }


async def test_without_the_extra_the_portal_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(portal_module, "portal_is_installed", lambda: False)
    answers = Answers()
    await Portal().handle(scope(), no_body, answers.send)
    assert answers.status == 501
    assert b"pip install 'bendybus[portal]'" in answers.body


async def test_a_portal_that_does_not_start_is_an_error_and_is_not_started_again_at_once(monkeypatch, caplog):
    monkeypatch.setattr(portal_module, "portal_is_installed", lambda: True)
    monkeypatch.setattr(portal_module.sys, "executable", "/bin/false")
    portal = Portal()
    portal.serve(PortalTarget("Endpoint=sb://127.0.0.1:1", None, False))
    for _ in range(2):
        answers = Answers()
        await portal.handle(scope(), no_body, answers.send)
        assert answers.status == 503
    assert sum("could not be started" in record.getMessage() for record in caplog.records) == 1
    await portal.close()


async def test_a_request_is_passed_on_with_what_a_browser_cannot_claim(monkeypatch, tmp_path):
    heard = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        heard = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        writer.close()

    address = str(tmp_path / "s")
    monkeypatch.setattr(portal_module, "portal_is_installed", lambda: True)
    monkeypatch.setattr(Portal, "address", lambda self: asyncio.sleep(0, address))
    async with await asyncio.start_unix_server(serve, address):
        answers = Answers()
        await Portal().handle(scope("/portal/entity"), no_body, answers.send)
    assert (answers.status, answers.body) == (200, b"abcde")
    assert heard.startswith(b"GET /portal/entity HTTP/1.1\r\n")
    assert b"x-forwarded-for: 127.0.0.1" in heard
    assert b"1.2.3.4" not in heard


async def test_requests_beyond_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr(portal_module, "portal_is_installed", lambda: True)
    portal = Portal()
    portal._passing = REQUESTS_MAX
    answers = Answers()
    await portal.handle(scope(), no_body, answers.send)
    assert answers.status == 503


# -- a real server, and a real portal ----------------------------------------------


class Browser:
    """Cookies, and one request at a time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""

    def ask(self, method: str, path: str, form: dict[str, str] | None = None, **headers: str):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        own = f"http://127.0.0.1:{self.port}"
        sent = {"Cookie": self.cookie, **({"Origin": own} if method == "POST" else {}), **headers}
        connection.request(method, path, urlencode(form or {}), sent)
        answer = connection.getresponse()
        body = answer.read().decode()
        for cookie in answer.headers.get_all("set-cookie", []):
            self.cookie = cookie.partition(";")[0]
            self.attributes = cookie.lower()
        connection.close()
        return answer.status, answer.headers, body

    def upgrade(self, **headers: str) -> bytes:
        """The first line of the answer to a WebSocket."""
        given = {
            "Host": f"127.0.0.1:{self.port}",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version": "13",
            **headers,
        }
        lines = ["GET /portal/_nicegui_ws/socket.io/?EIO=4&transport=websocket HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in given.items()]
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            return connection.recv(4096).split(b"\r\n")[0]


@pytest.fixture
def running(start_server: StartServer) -> Iterator[ServerProcess]:
    queues = {"portal": {}, "orders": {"EnablePartitioning": True}}
    server = start_server(queues, {"": [LISTENS]}, "--stall-after", "20")
    yield server
    assert server.stop() == 0


def test_a_person_signs_in_and_sees_the_namespace_and_others_see_nothing(running: ServerProcess):
    stranger, person = Browser(running.port), Browser(running.port)
    status, headers, _ = stranger.ask("GET", "/portal/entity?path=orders")
    assert (status, headers["location"]) == (303, "/portal/sign-in?next=%2Fportal%2Fentity%3Fpath%3Dorders")
    status, headers, page = stranger.ask("GET", "/portal/sign-in")
    assert status == 200
    assert headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert not re.findall(r"(?:src|href)=.?https?://", page)
    # A wrong key, and a page of another site that knows the right one.
    assert stranger.ask("POST", "/portal/sign-in", {"secret": "wrong"})[0] == 401
    assert (
        stranger.ask("POST", "/portal/sign-in", {"secret": running.key}, Origin="http://evil.example")[0]
        == 403
    )
    assert not stranger.cookie
    own = f"http://127.0.0.1:{running.port}"
    assert b"401" in stranger.upgrade(Origin=own)

    status, headers, _ = person.ask("POST", "/portal/sign-in", {"secret": running.connection_string})
    assert (status, headers["location"]) == (303, "/portal/")
    assert "httponly" in person.attributes and "samesite=lax" in person.attributes
    status, headers, page = person.ask("GET", "/portal/")
    assert status == 200
    assert headers["cache-control"] == "no-store"
    assert running.key not in page and running.key not in person.cookie
    assert b"101" in person.upgrade(Origin=own, Cookie=person.cookie)
    assert b"403" in person.upgrade(Origin="http://127.0.0.1:1", Cookie=person.cookie)
    assert (
        person.ask("GET", "/portal/", **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})[0]
        == 403
    )
    assert person.ask("POST", "/portal/sign-out")[0] == 303
    assert person.ask("GET", "/portal/")[0] == 303
    assert running.key not in running.log.read_text()


def test_the_printed_link_signs_in_once_and_sessions_survive_a_restart(running: ServerProcess):
    link = running.next_line()
    found = re.fullmatch(r"portal http://127\.0\.0\.1:\d+(/portal/sign-in\?code=\S+)\n", link)
    assert found is not None, link
    first, second = Browser(running.port), Browser(running.port)
    assert first.ask("GET", found[1])[0] == 303
    assert first.ask("GET", "/portal/")[0] == 200
    status, _, page = second.ask("GET", found[1])
    assert (status, second.cookie) == (200, "")
    assert "has been used already" in page
    running.stop()
    running.start()
    assert first.ask("GET", "/portal/")[0] == 200


def test_the_portal_runs_alone_for_a_server_elsewhere(running: ServerProcess):
    command = [BENDYBUS, "portal", "--port", "0", "--connection-string", running.connection_string]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as alone:
        try:
            assert alone.stdout is not None
            line = alone.stdout.readline()
            found = re.fullmatch(r"portal http://127\.0\.0\.1:(\d+)(/portal/sign-in\?code=\S+)\n", line)
            assert found is not None, line
            person = Browser(int(found[1]))
            assert person.ask("GET", found[2])[0] == 303
            status, _, page = person.ask("GET", "/portal/entity?path=orders")
            assert status == 200 and "Partition 15" in page
        finally:
            alone.terminate()
    assert alone.returncode in (0, -15)


def test_the_portal_is_shown_over_tls_where_tls_is_required(start_server: StartServer):
    server = start_server({"orders": {}}, None, "--require-tls")
    context = ssl.create_default_context(cafile=str(server.certificate))

    def ask(method: str, path: str, form: dict[str, str], cookie: str = "") -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=60)
        own = {"Origin": f"https://127.0.0.1:{server.port}", "Cookie": cookie}
        connection.request(method, path, urlencode(form), own)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    signed_in = ask("POST", "/portal/sign-in", {"secret": server.connection_string})
    assert signed_in.status == 303
    cookie = signed_in.headers["set-cookie"]
    assert "secure" in cookie.lower()
    assert ask("GET", "/portal/", {}, cookie.partition(";")[0]).status == 200
    assert server.stop() == 0


@pytest.mark.row("P-06")
@pytest.mark.row("P-36")
def test_pages_show_partitions_and_offer_partitioning(running: ServerProcess):
    """What a page is made of is in its source, before the browser has drawn it."""
    person = Browser(running.port)
    person.ask("POST", "/portal/sign-in", {"secret": running.connection_string})
    page = html.unescape(person.ask("GET", "/portal/")[2])
    assert re.search(r'"text":"Enable partitioning",[^{}]*"props":\{"model-value":true', page)
    assert "16 partitions of 1 GB each: the entity holds up to 16 GB." in page
    page = html.unescape(person.ask("GET", "/portal/entity?path=orders")[2])
    for shown in ("Partition 0", "Partition 15", "store-0", "store-1", "Broker", "Available", "of 16.0 GB"):
        assert shown in page, shown
    assert "Active" in page and "Dead letters" in page


def test_what_an_address_says_never_becomes_part_of_a_page(running: ServerProcess):
    person = Browser(running.port)
    person.ask("POST", "/portal/sign-in", {"secret": running.connection_string})
    evil = quote("</title></script><script>alert(1)</script>\"'", safe="")
    for page in (
        "entity?path=",
        "messages?path=orders&text=",
        "dead-letters?path=orders&reason=",
        "?search=",
    ):
        status, _, source = person.ask("GET", f"/portal/{page}{evil}")
        assert status == 200, page
        assert "<script>alert" not in source, page
    assert "<script>alert" not in person.ask("GET", f"/portal/sign-in?next={evil}")[2]


def test_a_queue_may_still_be_called_portal(running: ServerProcess):
    from bendybus.auth.connection_strings import ConnectionString
    from bendybus.management.client import ManagementClient

    with ManagementClient(ConnectionString.parse(running.connection_string)) as management:
        assert management.get("portal").kind == "QueueDescription"
