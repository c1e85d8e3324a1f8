"""The SDK's own administration client, unmodified, over https with the server's self-made certificate."""

from __future__ import annotations

import http.client
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias
from xml.etree import ElementTree

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
)
from azure.servicebus.management import QueueProperties, ServiceBusAdministrationClient

from bendybus.auth.sas import make_token
from fix_server import RULES, Kind, ServerProcess, StartServer, namespace, refusals
from interop.conftest import Connect
from interop.sdk import CROSSWISE

Raw: TypeAlias = Callable[..., tuple[int, ElementTree.Element]]

_numbers = count()

# A sender that has been idle hears of its link's end only while it sends, and then knows no reason;
# trying once more, as the SDK does unless told not to, it learns it.
ONCE_MORE = {"retry_total": 1}
# The second is what the Python SDK makes of the 404 that its token is answered with.
NOT_FOUND = (MessagingEntityNotFoundError, ServiceBusAuthenticationError)


def administration(server: ServerProcess, connection_string: str = "") -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string or server.connection_string,
        connection_verify=str(server.certificate),
        retry_total=0,
    )


# Of the longest duration; the client rounds the rest of it.
UNLIMITED_DAYS = 10_675_199


@pytest.fixture
def admin(server: ServerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with administration(server) as client:
        yield client


@pytest.fixture
def name(admin: ServiceBusAdministrationClient) -> Iterator[str]:
    """Of a queue that is not there yet, and is not there afterwards."""
    name = f"Made/at-run.time_{next(_numbers)}"
    yield name
    with suppress(ResourceNotFoundError):
        admin.delete_queue(name)


@pytest.fixture
def raw(server: ServerProcess) -> Raw:
    """A request as no SDK sends it: the status, and the document that came back."""

    def send(method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, ElementTree.Element]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        token = make_token("https://h", "RootManageSharedAccessKey", server.key, int(time.time()) + 600)
        connection.request(method, target, body, {"Authorization": token, **headers})
        response = connection.getresponse()
        document = ElementTree.fromstring(response.read() or b"<empty/>")
        connection.close()
        return response.status, document

    return send


def plain(properties: QueueProperties) -> dict[str, object]:
    """What the client rounds when it sends it back counts as the same."""
    return {
        name: timedelta.max if isinstance(value, timedelta) and value.days == UNLIMITED_DAYS else value
        for name, value in dict(properties).items()
    }


def entry(elements: str, kind: str = "QueueDescription") -> bytes:
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f"<{kind}>{elements}</{kind}></content></entry>"
    ).encode()


# -- queues -------------------------------------------------------------------------


@pytest.mark.row("P-08")
@pytest.mark.parametrize("kind", list(Kind))
def test_a_queue_is_created_shown_updated_and_deleted(
    admin: ServiceBusAdministrationClient, name: str, kind: Kind
) -> None:
    partitioned = kind is Kind.PARTITIONED
    before = datetime.now(UTC) - timedelta(seconds=1)
    made = admin.create_queue(
        name,
        enable_partitioning=partitioned,
        lock_duration=timedelta(seconds=30),
        max_size_in_megabytes=2048,
        user_metadata="<mine & yours>",
        default_message_time_to_live="P14D",
    )
    assert (made.name, made.enable_partitioning, made.lock_duration) == (
        *(name, partitioned, timedelta(seconds=30)),
    )
    # P-08: the effective size is shown
    assert made.max_size_in_megabytes == (2048 * 16 if partitioned else 2048)
    assert made.availability_status == "Available"
    assert dict(admin.get_queue(name.upper())) | {"name": name} == dict(made)

    made.max_delivery_count, made.user_metadata, made.lock_duration = 3, None, timedelta(minutes=2)
    admin.update_queue(made)
    shown = admin.get_queue(name)
    assert (shown.max_delivery_count, shown.user_metadata) == (3, None)
    assert shown.lock_duration == timedelta(minutes=2)
    assert plain(shown) == plain(made)  # all else as it was, unlimited durations included

    runtime = admin.get_queue_runtime_properties(name)
    assert before < runtime.created_at_utc < runtime.updated_at_utc
    admin.delete_queue(name)
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(name)


async def test_the_asynchronous_client_manages_too(server: ServerProcess, name: str) -> None:
    async with AsyncAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=str(server.certificate)
    ) as client:
        await client.create_queue(name)
        assert name in [queue.name async for queue in client.list_queues()]
        await client.delete_queue(name)


def test_what_is_there_or_not_there_is_said_so(admin: ServiceBusAdministrationClient, name: str) -> None:
    made = admin.create_queue(name)
    with pytest.raises(ResourceExistsError, match="SubCode=40900"):
        admin.create_queue(name.lower())
    admin.delete_queue(name)
    missing: list[Callable[[], object]] = [
        lambda: admin.get_queue(name),
        lambda: admin.get_queue_runtime_properties(name),
        lambda: admin.update_queue(made),
        lambda: admin.delete_queue(name),
        lambda: admin.get_topic(name),
        lambda: admin.get_subscription("t", "s"),
        lambda: admin.get_rule("t", "s", "r"),
        lambda: admin.delete_topic("t"),
    ]
    for use in missing:
        with pytest.raises(ResourceNotFoundError):
            use()
    # Azure shows an empty list there, too.
    assert list(admin.list_subscriptions("t")) == []
    assert name not in [topic.name for topic in admin.list_topics()]


@pytest.mark.row("P-07")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"enable_partitioning": False}, "EnablePartitioning is True since the queue was created"),
        ({"requires_session": True}, "RequiresSession is False since the queue was created"),
        ({"requires_duplicate_detection": True}, "RequiresDuplicateDetection is False"),
    ],
)
def test_what_is_fixed_at_creation_is_refused_with_the_reason(
    admin: ServiceBusAdministrationClient, name: str, change: dict[str, Any], reason: str
) -> None:
    queue = admin.create_queue(name, enable_partitioning=True)
    with pytest.raises(HttpResponseError, match=f"SubCode=40000.*{reason}"):
        admin.update_queue(queue, **change)
    assert dict(admin.get_queue(name)) == dict(queue)


@pytest.mark.parametrize("kind", list(Kind))
def test_forwards_come_back_as_the_client_sent_them(
    admin: ServiceBusAdministrationClient, name: str, kind: Kind
) -> None:
    options = {"enable_partitioning": kind is Kind.PARTITIONED}
    made = admin.create_queue(name, requires_session=True, **options)
    # The client makes a URL of a bare name, and of itself.
    made.forward_to = made.forward_dead_lettered_messages_to = name
    admin.update_queue(made)
    shown = admin.get_queue(name)
    for forward in (shown.forward_to, shown.forward_dead_lettered_messages_to):
        assert forward is not None and re.fullmatch(f"(sb|https?)://[^/]+/{name}", forward)
    admin.update_queue(shown)
    assert dict(admin.get_queue(name)) == dict(shown)


def test_a_queue_with_sessions_is_made(admin: ServiceBusAdministrationClient, name: str) -> None:
    assert admin.create_queue(name, requires_session=True, enable_partitioning=True).requires_session
    assert admin.get_queue(name).requires_session


def test_lists_come_in_pages(admin: ServiceBusAdministrationClient) -> None:
    names = [f"page-{number:03d}" for number in range(130)]
    there = {queue.name for queue in admin.list_queues()}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(admin.create_queue, names))
        listed = [queue.name for queue in admin.list_queues()]
        assert len(listed) == len(set(listed)) and listed == sorted(listed, key=str.lower)
        assert set(listed) == there | set(names)
        counts = admin.list_queues_runtime_properties(start_index=5, max_page_size=50)
        assert sum(1 for _ in counts) == len(listed) - 5
        list(pool.map(admin.delete_queue, names))
    assert {queue.name for queue in admin.list_queues()} == there


def test_the_namespace_tells_its_tier(admin: ServiceBusAdministrationClient) -> None:
    namespace = admin.get_namespace_properties()
    assert (namespace.messaging_sku, namespace.namespace_type) == ("Standard", "Messaging")
    assert namespace.created_at_utc <= datetime.now(UTC)


# -- with traffic -------------------------------------------------------------------


@pytest.mark.row("P-33")
@CROSSWISE
def test_a_queue_made_at_run_time_works_and_its_counts_are_summed(
    admin: ServiceBusAdministrationClient, server: ServerProcess, connect: Connect, name: str, kind: Kind
) -> None:
    admin.create_queue(name, enable_partitioning=kind is Kind.PARTITIONED)
    sdk_queue = connect(server.connection_string, name)
    sdk_queue.send(*map(str, range(20)))
    done, dead, put_aside, _locked, *_ = sdk_queue.receive(20)
    sdk_queue.complete(done)
    sdk_queue.receiver.dead_letter_message(dead)
    sdk_queue.receiver.defer_message(put_aside)
    runtime = admin.get_queue_runtime_properties(name)
    assert (runtime.active_message_count, runtime.dead_letter_message_count) == (17, 1)
    assert (runtime.total_message_count, runtime.scheduled_message_count) == (19, 0)
    assert runtime.size_in_bytes > 0
    assert datetime.now(UTC) - runtime.accessed_at_utc < timedelta(minutes=1)


@CROSSWISE
def test_who_waits_at_a_queue_that_is_deleted_is_told(
    admin: ServiceBusAdministrationClient, server: ServerProcess, connect: Connect, name: str, kind: Kind
) -> None:
    admin.create_queue(name, enable_partitioning=kind is Kind.PARTITIONED)
    sdk_queue = connect(server.connection_string, name, **ONCE_MORE)
    sdk_queue.send("one", "two")
    first = sdk_queue.receive_one()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: [sdk_queue.receive(1), sdk_queue.receive(1)])
        admin.delete_queue(name)
        with pytest.raises(NOT_FOUND):
            waiting.result()
    with pytest.raises(NOT_FOUND):
        sdk_queue.send("three")
    # A namesake begins empty, and knows nothing of the old locks.
    admin.create_queue(name, enable_partitioning=kind is Kind.PARTITIONED)
    again = connect(server.connection_string, name)
    again.send("new")
    assert str(again.receive_one()) == "new"
    assert str(first) == "one"


@CROSSWISE
def test_a_queue_that_is_disabled_lets_go_of_its_clients(
    admin: ServiceBusAdministrationClient, server: ServerProcess, connect: Connect, name: str, kind: Kind
) -> None:
    queue = admin.create_queue(name, enable_partitioning=kind is Kind.PARTITIONED)
    sdk_queue = connect(server.connection_string, name, **ONCE_MORE)
    sdk_queue.send("kept")
    queue.status = "SendDisabled"
    admin.update_queue(queue)
    with pytest.raises(MessagingEntityDisabledError, match="SendDisabled"):
        sdk_queue.send("refused")
    message = sdk_queue.receive_one()
    assert str(message) == "kept"
    sdk_queue.complete(message)
    queue.status = "Active"
    admin.update_queue(queue)
    sdk_queue.send("again")
    sdk_queue.complete(sdk_queue.receive_one())


@pytest.mark.row("B-08")
@pytest.mark.parametrize("kind", list(Kind))
def test_a_restart_keeps_what_was_created_and_forgets_what_was_deleted(
    start_server: StartServer, connect: Connect, kind: Kind
) -> None:
    server = start_server({})
    with administration(server) as admin:
        partitioned = kind is Kind.PARTITIONED
        kept = admin.create_queue("Kept", enable_partitioning=partitioned, max_delivery_count=2)
        admin.create_queue("deleted", enable_partitioning=partitioned)
        kept.max_delivery_count = 5
        admin.update_queue(kept)
        admin.delete_queue("deleted")
        connect(server.connection_string, "kept").send("x")
        before = admin.get_queue_runtime_properties("kept")
        assert before.accessed_at_utc >= before.created_at_utc
        server.kill()
        server.start()
        assert [plain(queue) for queue in admin.list_queues()] == [plain(kept)]
        after = admin.get_queue_runtime_properties("kept")
        assert (after.created_at_utc, after.accessed_at_utc.year) == (before.created_at_utc, 1)


@pytest.mark.row("P-11")
def test_partitioned_queues_are_limited_in_number(start_server: StartServer) -> None:
    server = start_server({f"q{number}": {"EnablePartitioning": True} for number in range(100)})
    with administration(server) as admin:
        with pytest.raises(HttpResponseError, match=r"SubCode=40300.*100 partitioned") as refused:
            admin.create_queue("one-more", enable_partitioning=True)
        assert refused.value.status_code == 403
        admin.create_queue("plain")


@pytest.mark.row("P-11")
def test_a_config_with_too_many_partitioned_queues_is_refused_in_one_line(tmp_path: Path) -> None:
    queues = {f"q{number}": {"EnablePartitioning": True} for number in range(101)}
    server = ServerProcess(tmp_path, namespace(queues))
    # The audit log tells of the hundred that were created.
    command = [*server.command(), "--audit-log", str(tmp_path / "audit.jsonl")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert (ended.returncode, ended.stdout, len(refusals(ended))) == (2, "", 1)
    assert "Config.json: Queue 'q100' cannot be created" in ended.stderr


# -- access -------------------------------------------------------------------------


def test_a_wrong_key_opens_nothing(server: ServerProcess) -> None:
    wrong = re.sub("SharedAccessKey=[^;]+", "SharedAccessKey=bm90IHRoZSBrZXk=", server.connection_string)
    with administration(server, wrong) as admin:
        for use in (admin.get_namespace_properties, lambda: list(admin.list_queues())):
            with pytest.raises(ClientAuthenticationError, match="InvalidSignature"):
                use()
        with pytest.raises(ClientAuthenticationError):
            admin.create_queue("nobody")


def test_only_manage_may_look_or_change(
    server: ServerProcess, admin: ServiceBusAdministrationClient, name: str
) -> None:
    admin.create_queue(name)
    key = RULES["Listens"][0]
    listens = f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName=Listens;SharedAccessKey={key}"
    with administration(server, listens) as listener:
        uses: list[Callable[[], object]] = [
            listener.get_namespace_properties,
            lambda: listener.get_queue(name),
            lambda: list(listener.list_queues()),
            lambda: listener.create_queue(f"{name}-2"),
            lambda: listener.delete_queue(name),
        ]
        for use in uses:
            with pytest.raises(ClientAuthenticationError, match=r"claims required|Authorization failed"):
                use()
        # As on Azure, where Go's live tests ask for it.
        with pytest.raises(ResourceNotFoundError):
            listener.get_queue(f"{name}-2")


# -- versions and bad requests ------------------------------------------------------


@pytest.mark.row("P-10")
def test_versions_before_partitions_neither_make_nor_see_them(
    admin: ServiceBusAdministrationClient, raw: Raw, name: str
) -> None:
    body = entry("<EnablePartitioning>true</EnablePartitioning>")
    for version in ("", "?api-version=2013-08"):
        status, error = raw("PUT", f"/{name}{version}", body)
        assert status == 400 and "api-version=2013-10 or later" in (error.findtext("Detail") or "")
    admin.create_queue(name, enable_partitioning=True)
    for version, seen in (("2013-08", False), ("2013-10", True), ("2030-01", True)):
        assert raw("GET", f"/{name}?api-version={version}")[0] == (200 if seen else 400)
        _, feed = raw("GET", f"/$Resources/Queues?api-version={version}&%24top=100")
        assert (name in {title.text for title in feed.iter("{http://www.w3.org/2005/Atom}title")}) is seen
    status, error = raw("DELETE", f"/{name}?api-version=2013-08")
    assert status == 400 and "api-version=2013-10 or later" in (error.findtext("Detail") or "")


def test_only_a_star_matches(admin: ServiceBusAdministrationClient, raw: Raw, name: str) -> None:
    admin.create_queue(name)
    put = entry("<MaxDeliveryCount>4</MaxDeliveryCount>")
    target = f"/{name}?api-version=2021-05"
    assert raw("PUT", target, put)[0] == 409
    assert raw("PUT", target, put, **{"If-Match": '"tag"'})[0] == 412
    assert raw("PUT", target, put, **{"If-Match": "*"})[0] == 200
    assert admin.get_queue(name).max_delivery_count == 4


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("PUT", "/bad", b"", 400),
        ("PUT", "/bad", b"<entry", 400),
        ("PUT", "/bad", b"\xff\xfe\x00", 400),
        ("PUT", "/bad", b'<!DOCTYPE e [<!ENTITY a "b">]><entry>&a;</entry>', 400),
        ("PUT", "/bad", entry("") + b" " * 3_000_000, 400),
        ("PUT", "/bad", entry("<a>" * 5000 + "</a>" * 5000), 400),
        ("PUT", "/bad", entry("<LockDuration>P1Y</LockDuration>"), 400),
        ("PUT", "/bad", entry("<MaxDeliveryCount>many</MaxDeliveryCount>"), 400),
        ("PUT", "/bad", entry("<EnablePartitioning>perhaps</EnablePartitioning>"), 400),
        ("PUT", "/bad", entry("<MaxSizeInMegabytes>1025</MaxSizeInMegabytes>"), 400),
        ("PUT", "/bad", entry("", kind="Nothing"), 400),
        ("PUT", "/b%40d", entry(""), 400),
        ("PUT", "/b%00%01d%ff", entry(""), 400),
        ("PUT", "/" + "x" * 261, entry(""), 400),
        ("PUT", "/$namespaceinfo", entry(""), 400),
        ("PUT", "/$servicebus/websocket", entry(""), 400),
        ("PUT", "/", entry(""), 400),
        ("PUT", "/%2e%2e/bad", entry(""), 401),
        ("PUT", "/" + "x" * 5000, entry(""), 401),
        ("GET", "/bad?api-version=latest", b"", 400),
        ("GET", "/$Resources/queues?%24skip=-1", b"", 400),
        ("GET", "/$Resources/queues?%24top=" + "9" * 4000, b"", 400),
        ("GET", "/$Resources/nothing", b"", 404),
        ("DELETE", "/bad", b"", 404),
    ],
)
def test_a_bad_request_gets_an_error_document(
    raw: Raw, method: str, target: str, body: bytes, status: int
) -> None:
    answered, error = raw(method, target, body)
    assert (answered, error.tag, error.findtext("Code")) == (status, "Error", str(status))
    has_sub_code = method == "PUT" and status != 401
    assert (error.findtext("Detail") or "").startswith(f"SubCode={status}") is has_sub_code


def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_fault(server: ServerProcess, raw: Raw) -> None:
    token = make_token("https://h", "RootManageSharedAccessKey", server.key, int(time.time()) + 600)
    head = f"PUT /left HTTP/1.1\r\nHost: h\r\nAuthorization: {token}\r\nContent-Length: 5000\r\n\r\n<entry>"
    with socket.create_connection(("127.0.0.1", server.port)) as leaving:
        leaving.sendall(head.encode())
    assert raw("DELETE", "/left")[0] == 404
    # The `server` fixture looks through the log.


def test_without_a_token_nothing_is_told(raw: Raw, server: ServerProcess) -> None:
    for target in ("/", "/there", "/$namespaceinfo", "/$Resources/queues"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("GET", target)
        response = connection.getresponse()
        assert response.status == 401
        assert b"no Authorization header" in response.read()
        connection.close()
    assert raw("GET", "/$namespaceinfo", Authorization="SharedAccessSignature sr=&&&=")[0] == 401
