"""REST messages: any HTTP client beside the SDK, on either kind of queue, over a kept connection or none."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, TypeAlias
from urllib.parse import quote_plus, urlsplit

import pytest
from azure.servicebus import ServiceBusMessage

from fix_server import RULES, Kind, NewQueue, ServerProcess, Shape, StartServer
from interop.conftest import MakeSdkQueue
from interop.sdk import SdkQueue

ROOT = "RootManageSharedAccessKey"
BATCH = "application/vnd.microsoft.servicebus.json"


def sign(uri: str, name: str, key: str, expires_at_s: float) -> str:
    """A shared access signature, made from its public description alone."""
    resource = quote_plus(uri)
    digest = hmac.digest(key.encode(), f"{resource}\n{int(expires_at_s)}".encode(), hashlib.sha256)
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={int(expires_at_s)}&skn={name}"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    """Named as the server spelled them."""
    body: bytes

    @property
    def broker_properties(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.headers["brokerproperties"])
        return told

    @property
    def place(self) -> str:
        """Where a locked message is."""
        return urlsplit(self.headers["location"]).path


class Rest:
    """An HTTP client at one queue, with a connection that it keeps."""

    def __init__(self, server: ServerProcess, queue: str) -> None:
        self.queue = queue
        self.token = sign(f"https://127.0.0.1:{server.port}", ROOT, server.key, time.time() + 600)
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)

    def ask(self, method: str, path: str, body: bytes | str | None = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, {"Authorization": self.token, **named})
        response = self.connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())

    def send(self, body: bytes | str, properties: dict[str, object] | None = None, **headers: str) -> None:
        given = {} if properties is None else {"BrokerProperties": json.dumps(properties)}
        answer = self.ask("POST", f"/{self.queue}/messages?timeout=60", body, **given, **headers)
        assert (answer.status, answer.body) == (201, b"")

    def peek_lock(self, timeout_s: int = 20, below: str = "") -> Answer:
        return self.ask("POST", f"/{self.queue}{below}/messages/head?timeout={timeout_s}")

    def receive(self, timeout_s: int = 20, below: str = "") -> Answer:
        return self.ask("DELETE", f"/{self.queue}{below}/messages/head?timeout={timeout_s}")


Connect: TypeAlias = Callable[[ServerProcess, str], Rest]


@pytest.fixture
def call() -> Iterator[Connect]:
    """An HTTP client: `call(server, queue)`."""
    clients: list[Rest] = []

    def make(server: ServerProcess, queue: str) -> Rest:
        clients.append(Rest(server, queue))
        return clients[-1]

    yield make
    for client in clients:
        client.connection.close()


@pytest.fixture(scope="session")
def _left_empty() -> dict[Kind, str]:
    """The queues that the next test may use."""
    return {}


@pytest.fixture
def rest(
    call: Connect,
    server: ServerProcess,
    new_queue: NewQueue,
    kind: Kind,
    _left_empty: dict[Kind, str],
    request: pytest.FixtureRequest,
) -> Iterator[Rest]:
    """An HTTP client at an empty queue, which its test leaves as empty."""
    queue = _left_empty.pop(kind, None) or new_queue(kind)
    failed_before = request.session.testsfailed
    yield call(server, queue)
    if request.session.testsfailed == failed_before:
        _left_empty[kind] = queue


def refused(answer: Answer, status: int, text: str = "") -> None:
    """Every refusal has an Error body."""
    assert answer.status == status, answer
    assert answer.headers["content-type"].startswith("application/xml")
    found = re.fullmatch(rb"<Error><Code>(\d+)</Code><Detail>(.*)</Detail></Error>", answer.body, re.DOTALL)
    assert found is not None and int(found[1]) == status
    assert text in found[2].decode()


# -- one message's life ---------------------------------------------------------------


def test_a_message_is_sent_locked_and_completed(rest: Rest) -> None:
    given = {
        "Label": "M1",
        "MessageId": "m-1",
        "PartitionKey": "ada",
        "TimeToLive": 600,
        "CorrelationId": "c",
    }
    rest.send("hello", given, Content_Type="text/plain", Priority='"High"', Customer="12", VIP="true")
    locked = rest.peek_lock()
    assert (locked.status, locked.body) == (201, b"hello")
    assert locked.headers["content-type"] == "text/plain"
    assert (locked.headers["Priority"], locked.headers["Customer"], locked.headers["VIP"]) == (
        '"High"',
        "12",
        "true",
    )
    told = locked.broker_properties
    assert {name: told[name] for name in given} == given
    assert (told["DeliveryCount"], told["State"]) == (1, "Active")
    number, token = told["SequenceNumber"], told["LockToken"]
    assert locked.headers["location"] == (
        f"http://127.0.0.1:{rest.connection.port}/{rest.queue}/messages/{number}/{token}"
    )
    assert rest.ask("DELETE", locked.place).status == 200
    assert rest.peek_lock(0).status == 204
    refused(rest.ask("DELETE", locked.place), 404, "Either the lock expired")


def test_a_message_is_received_and_deleted(rest: Rest) -> None:
    rest.send(b"\x00\xff", Mine='"x"')
    received = rest.receive()
    assert (received.status, received.body, received.headers["Mine"]) == (200, b"\x00\xff", '"x"')
    assert "LockToken" not in received.broker_properties
    assert "location" not in received.headers
    assert rest.receive(0).status == 204


def test_an_unlocked_message_comes_again_and_counts(rest: Rest) -> None:
    rest.send("again")
    locked = rest.peek_lock()
    assert rest.ask("PUT", locked.place).status == 200
    again = rest.peek_lock()
    assert again.broker_properties["DeliveryCount"] == 2
    assert rest.ask("DELETE", again.place).status == 200


def test_a_lock_can_be_renewed_by_message_id_too(rest: Rest) -> None:
    rest.send("x", {"MessageId": "an id/with 7"})
    token = rest.peek_lock().broker_properties["LockToken"]
    place = f"/{rest.queue.upper()}/Messages/an%20id%2Fwith%207/{token}"
    assert rest.ask("POST", place).status == 200
    assert rest.ask("DELETE", place).status == 200
    refused(rest.ask("POST", place), 404)


@pytest.mark.row("B-06")
def test_a_message_is_deferred_and_received_by_its_number(rest: Rest) -> None:
    for body in ("complete me", "delete me"):
        rest.send(body)
    numbers = {}
    for _ in range(2):
        locked = rest.peek_lock()
        assert rest.ask("POST", f"{locked.place}/defer").status == 200
        numbers[locked.body] = locked.broker_properties["SequenceNumber"]
    assert rest.receive(0).status == 204
    place = f"/{rest.queue}/messages/deferred"
    again = rest.ask("POST", f"{place}/{numbers[b'complete me']}")
    assert (again.status, again.body) == (201, b"complete me")
    # Under lock: it cannot be had twice.
    refused(rest.ask("POST", f"{place}/{numbers[b'complete me']}"), 404)
    assert rest.ask("DELETE", again.place).status == 200
    deleted = rest.ask("DELETE", f"{place}/{numbers[b'delete me']}")
    assert (deleted.status, deleted.body, "location" in deleted.headers) == (200, b"delete me", False)
    refused(rest.ask("DELETE", f"{place}/{numbers[b'delete me']}"), 404)
    refused(rest.ask("POST", f"{place}/{1 << 62}"), 404)


@pytest.mark.row("B-06")
def test_a_message_is_dead_lettered_with_a_reason(rest: Rest) -> None:
    rest.send("bad")
    locked = rest.peek_lock()
    why = "reason=Late&description=by%20a%20day"
    assert rest.ask("POST", f"{locked.place}/DeadLetter?{why}").status == 200
    letter = rest.receive(below="/$DeadLetterQueue")
    assert letter.body == b"bad"
    assert letter.headers["DeadLetterReason"] == '"Late"'
    assert letter.headers["DeadLetterErrorDescription"] == '"by a day"'


@pytest.mark.row("B-02")
def test_a_message_is_unlocked_with_a_delay(rest: Rest) -> None:
    rest.send("later")
    locked = rest.peek_lock()
    refused(rest.ask("PUT", f"{locked.place}?delay=soon"), 400, "delay")
    assert rest.ask("PUT", f"{locked.place}?delay=0.3").status == 200
    assert rest.peek_lock(0).status == 204
    assert rest.receive().body == b"later"


def test_a_lock_belongs_to_its_message(rest: Rest) -> None:
    rest.send("x", {"MessageId": "m"})
    locked = rest.peek_lock()
    token = locked.broker_properties["LockToken"]
    for wrong in (f"messages/other/{token}", f"messages/999/{token}", f"$DeadLetterQueue/messages/m/{token}"):
        refused(rest.ask("DELETE", f"/{rest.queue}/{wrong}"), 404)
    refused(rest.ask("DELETE", f"/{rest.queue}/messages/m/not-a-token"), 400, "is not a lock token")
    refused(rest.ask("PUT", f"/{rest.queue}/messages/m/ffffffff-ffff-ffff-ffff-ffffffffffff"), 404)
    assert rest.ask("DELETE", locked.place).status == 200


@pytest.mark.row("P-29")
def test_nothing_is_no_content_at_once_when_everything_is_locked(rest: Rest) -> None:
    rest.send("locked")
    locked = rest.peek_lock()
    for answer in (rest.peek_lock(0), rest.receive(0)):
        assert (answer.status, answer.body) == (204, b"")
    rest.ask("DELETE", locked.place)


def test_a_wait_ends_with_its_time(rest: Rest) -> None:
    assert rest.ask("DELETE", f"/{rest.queue}/messages/head?timeout=0.05").status == 204


def test_a_waiting_request_gets_a_message_as_it_comes(
    rest: Rest, call: Connect, server: ServerProcess
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rest.receive)
        call(server, rest.queue).send("fresh")
        assert waiting.result().body == b"fresh"


def test_dead_letters_are_received_and_cannot_be_sent(rest: Rest) -> None:
    rest.send("bad")
    for _ in range(3):  # MaxDeliveryCount
        assert rest.ask("PUT", rest.peek_lock().place).status == 200
    assert rest.peek_lock(0).status == 204
    dead = rest.peek_lock(below="/$DeadLetterQueue")
    assert (dead.status, dead.body) == (201, b"bad")
    assert dead.headers["DeadLetterReason"] == '"MaxDeliveryCountExceeded"'
    assert f"/{rest.queue}/$DeadLetterQueue/messages/" in dead.headers["location"]
    assert rest.ask("PUT", dead.place).status == 200
    assert rest.receive(below="/$deadletterqueue").status == 200
    refused(rest.ask("POST", f"/{rest.queue}/$DeadLetterQueue/messages", b"x"), 400, "sub-queue")


@pytest.mark.row("P-26")
def test_a_batch_is_sent_at_once(rest: Rest) -> None:
    batch = [
        {"Body": str(number), "BrokerProperties": {"PartitionKey": "k"}, "UserProperties": {"Number": number}}
        for number in range(5)
    ]
    answer = rest.ask("POST", f"/{rest.queue}/messages", json.dumps(batch), Content_Type=BATCH)
    assert answer.status == 201
    received = [rest.receive() for _ in batch]
    assert [one.body for one in received] == [b"0", b"1", b"2", b"3", b"4"]
    assert [one.headers["Number"] for one in received] == ["0", "1", "2", "3", "4"]


@pytest.mark.row("P-15")
def test_a_duplicate_over_http_is_accepted_and_dropped(
    call: Connect, server: ServerProcess, new_queue: NewQueue, kind: Kind
) -> None:
    rest = call(server, new_queue(kind, Shape.ONCE))
    for body in ("first", "again"):
        answer = rest.ask("POST", f"/{rest.queue}/messages", body, BrokerProperties='{"MessageId": "m"}')
        assert answer.status == 201
    batch = json.dumps([{"Body": "in a batch", "BrokerProperties": {"MessageId": "m"}}])
    assert rest.ask("POST", f"/{rest.queue}/messages", batch, Content_Type=BATCH).status == 201
    assert rest.receive().body == b"first"
    assert rest.ask("DELETE", f"/{rest.queue}/messages/head?timeout=0").status == 204


def test_a_message_scheduled_over_http_waits_for_its_time(rest: Rest, sdk_queue: SdkQueue) -> None:
    due = formatdate(time.time() + 3600, usegmt=True)
    properties = json.dumps({"ScheduledEnqueueTimeUtc": due, "MessageId": "later"})
    answer = rest.ask("POST", f"/{sdk_queue.name}/messages", "later", BrokerProperties=properties)
    assert answer.status == 201
    assert rest.ask("DELETE", f"/{sdk_queue.name}/messages/head?timeout=0").status == 204
    # From the first number on: the SDK begins behind the last message that this receiver has had.
    (waiting,) = sdk_queue.receiver.peek_messages(1, sequence_number=1)
    assert waiting.state.name == "SCHEDULED"
    sdk_queue.sender.cancel_scheduled_messages(waiting.sequence_number)


def test_old_python_clients_are_understood(rest: Rest, server: ServerProcess) -> None:
    """They sign the very URL, send numbers as text, and look for `/messages/` in the location."""
    path = f"/{rest.queue}/messages?timeout=60"
    uri = f"https://127.0.0.1:{server.port}{path}"
    rest.token = sign(uri, ROOT, server.key, time.time() + 300)
    properties = '{"TimeToLive":"90","ForcePersistence":"true","Label":"l"}'
    kind = "application/atom+xml;type=entry;charset=utf-8"
    answer = rest.ask("POST", path, "x", BrokerProperties=properties, Content_Type=kind)
    assert (answer.status, answer.headers["content-type"]) == (201, kind)
    rest.token = sign(f"https://127.0.0.1:{server.port}/{rest.queue}", ROOT, server.key, time.time() + 300)
    locked = rest.ask("POST", f"/{rest.queue}/messages/head?timeout=60")
    assert locked.broker_properties["TimeToLive"] == 90
    assert "/messages/" in locked.headers["location"]
    assert rest.ask("DELETE", locked.place).status == 200


# -- beside the SDK -------------------------------------------------------------------


def test_what_the_sdk_sends_http_receives(
    make_sdk_queue: MakeSdkQueue, kind: Kind, call: Connect, server: ServerProcess
) -> None:
    sdk_queue = make_sdk_queue(kind)
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    message = ServiceBusMessage(
        "Grüße",
        application_properties={"Text": 'say "hi"', "Number": 7, "Flag": True, "Ratio": 1.5, "When": when},
        message_id="m",
        subject="s",
        partition_key="k",
        content_type="text/plain",
        reply_to="r",
    )
    sdk_queue.sender.send_messages(message)
    rest = call(server, sdk_queue.name)
    locked = rest.peek_lock()
    assert locked.body == "Grüße".encode()
    named = {
        name: locked.headers[name] for name in ("Text", "Number", "Flag", "Ratio", "When", "content-type")
    }
    assert named == {
        "Text": '"say \\"hi\\""',
        "Number": "7",
        "Flag": "true",
        "Ratio": "1.5",
        "When": '"Fri, 02 Jan 2026 03:04:05 GMT"',
        "content-type": "text/plain",
    }
    told = locked.broker_properties
    names = ("MessageId", "Label", "PartitionKey", "ReplyTo")
    assert [told[name] for name in names] == ["m", "s", "k", "r"]
    assert rest.ask("DELETE", locked.place).status == 200
    assert sdk_queue.is_empty()


def test_what_http_sends_the_sdk_receives(sdk_queue: SdkQueue, call: Connect, server: ServerProcess) -> None:
    rest = call(server, sdk_queue.name)
    given = {"MessageId": "m", "Label": "s", "PartitionKey": "k", "TimeToLive": 60, "To": "t"}
    rest.send(
        "hello",
        given,
        Content_Type="text/plain",
        Text='"a"',
        Number="7",
        When='"Fri, 02 Jan 2026 03:04:05 GMT"',
    )
    message = sdk_queue.receive_one()
    assert str(message) == "hello"
    assert (message.message_id, message.subject, message.partition_key, message.to) == ("m", "s", "k", "t")
    assert message.time_to_live is not None and message.time_to_live.total_seconds() == 60
    assert message.content_type == "text/plain"
    properties = {_text(name): _text(value) for name, value in (message.application_properties or {}).items()}
    when = properties.pop("When")
    assert properties == {"Text": "a", "Number": 7}
    assert when in (1_767_323_045_000, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    sdk_queue.complete(message)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def test_a_lock_keeps_the_message_from_the_other_protocol(
    sdk_queue: SdkQueue, call: Connect, server: ServerProcess
) -> None:
    rest = call(server, sdk_queue.name)
    sdk_queue.send("one")
    message = sdk_queue.receive_one()
    assert rest.receive(0).status == 204
    sdk_queue.receiver.abandon_message(message)
    locked = rest.peek_lock()
    assert locked.broker_properties["DeliveryCount"] == 2
    assert rest.ask("DELETE", locked.place).status == 200


# -- connections ----------------------------------------------------------------------


@pytest.mark.row("P-29")
def test_one_connection_serves_one_request_after_another(rest: Rest) -> None:
    rest.connection.connect()
    kept = rest.connection.sock
    for number in range(5):
        rest.send(str(number))
        assert rest.receive().status == 200
        refused(rest.ask("DELETE", "/nowhere/messages/head"), 404)
        assert rest.receive(0).status == 204
    assert rest.connection.sock is kept


def test_it_works_over_tls(rest: Rest, server: ServerProcess) -> None:
    rest.connection.close()
    context = ssl.create_default_context(cafile=server.certificate)
    rest.connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=20, context=context)
    rest.send("secret")
    locked = rest.peek_lock()
    assert locked.headers["location"].startswith("https://")
    assert rest.ask("DELETE", locked.place).status == 200


@pytest.mark.row("P-28")
@pytest.mark.parametrize("verb", ["POST", "DELETE"])
def test_a_client_that_vanishes_while_it_waits_takes_nothing(
    rest: Rest, server: ServerProcess, verb: str
) -> None:
    head = (
        f"{verb} /{rest.queue}/messages/head?timeout=60 HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: {rest.token}\r\nContent-Length: 0\r\n\r\n"
    )
    vanishing = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    for client in vanishing:
        client.sendall(head.encode())
    assert rest.receive(0).status == 204  # by then the others wait: they came first
    for client in vanishing:
        client.close()
    rest.send("survives")
    received = rest.receive()
    assert received.body == b"survives"
    assert received.broker_properties["DeliveryCount"] == 1


def test_stopping_answers_those_who_wait(start_server: StartServer, call: Connect) -> None:
    server = start_server({"q": {}})
    rest = call(server, "q")
    assert rest.receive(0).status == 204
    rest.connection.request("DELETE", "/q/messages/head?timeout=60", headers={"Authorization": rest.token})
    assert call(server, "q").receive(0).status == 204  # by then the other waits: it came first
    assert server.stop() == 0
    assert rest.connection.getresponse().status == 204


# -- refusals -------------------------------------------------------------------------


def test_who_has_no_claim_is_refused(
    rest: Rest, server: ServerProcess, new_queue: NewQueue, kind: Kind
) -> None:
    uri, soon = f"https://127.0.0.1:{server.port}", time.time() + 300
    sends, listens = (sign(uri, name, RULES[name][0], soon) for name in ("Sends", "Listens"))
    other = sign(f"{uri}/{new_queue(kind)}", ROOT, server.key, soon)
    wrong = sign(uri, ROOT, "bm90IHRoZSBrZXk=", soon)
    late = sign(uri, ROOT, server.key, time.time() - 60)
    sending, receiving = (
        ("POST", f"/{rest.queue}/messages"),
        ("POST", f"/{rest.queue}/messages/head?timeout=0"),
    )
    for token, (method, path), text in (
        (listens, sending, "'Send' claim"),
        (sends, receiving, "'Listen' claim"),
        (other, sending, "does not reach"),
        (wrong, sending, "has an invalid signature"),
        (late, receiving, "The token is expired"),
        ("", receiving, "of no known kind"),
    ):
        rest.token = token
        refused(rest.ask(method, path), 401, text)
    rest.token = sends
    rest.send("x")
    rest.token = listens
    assert rest.receive().status == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_what_is_too_large_is_refused_and_the_connection_lives_on(rest: Rest, chunked: bool) -> None:
    body: Any = iter([bytes(64 * 1024)] * 5) if chunked else bytes(300 * 1024)
    refused(rest.ask("POST", f"/{rest.queue}/messages", body), 403, "262144 bytes")
    rest.send(bytes(255 * 1024))
    assert len(rest.receive().body) == 255 * 1024


def test_a_body_without_end_is_cut_off(rest: Rest, server: ServerProcess) -> None:
    head = (
        f"POST /{rest.queue}/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: {rest.token}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"10000\r\n" + bytes(65536) + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(head.encode())
        with pytest.raises(OSError):
            for _ in range(10_000):
                client.sendall(chunk)
    assert rest.receive(0).status == 204


@pytest.mark.parametrize(
    "headers",
    [
        {"BrokerProperties": "{"},
        {"BrokerProperties": "[]"},
        {"BrokerProperties": '{"TimeToLive":-1}'},
        {"BrokerProperties": '{"SessionId":"a","PartitionKey":"b"}'},
        {"BrokerProperties": '{"MessageId":"' + "x" * 200 + '"}'},
        {"BrokerProperties": "[" * 60_000},
        {"Content_Type": BATCH},
    ],
    ids=lambda headers: str(headers)[:50],
)
def test_bad_input_is_refused_with_400(rest: Rest, headers: dict[str, str]) -> None:
    refused(rest.ask("POST", f"/{rest.queue}/messages", b"x", **headers), 400)
    assert rest.receive(0).status == 204


@pytest.mark.parametrize("timeout", ["soon", "-1", "nan"])
def test_a_timeout_must_be_a_time(rest: Rest, timeout: str) -> None:
    refused(rest.ask("POST", f"/{rest.queue}/messages/head?timeout={timeout}"), 400, "number of seconds")


def test_an_unknown_queue_is_not_found(rest: Rest) -> None:
    for method, path in (("POST", "messages"), ("POST", "messages/head"), ("DELETE", "messages/1/2")):
        refused(rest.ask(method, f"/no&where/{path}"), 404, "'no&amp;where' could not be found")


def test_a_disabled_queue_says_so(start_server: StartServer, call: Connect) -> None:
    server = start_server({"sends": {"Status": "ReceiveDisabled"}, "gives": {"Status": "SendDisabled"}})
    refused(call(server, "sends").receive(0), 400, "gives no messages")
    refused(call(server, "gives").ask("POST", "/gives/messages", b"x"), 400, "takes no messages")
