"""Several namespaces on one server: the same names in each, told apart by host name or by key."""

from __future__ import annotations

import http.client
import os
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError

from bendybus.amqp.message import encode_message
from bendybus.auth.key_ring import ROOT_RULE_NAME
from bendybus.auth.sas import make_token
from fix_client import Client, ConnectionLost, Endpoint, LinkRefused, Requester
from fix_server import ServerProcess, namespace

OWNER: Final = "owner"
KEYS: Final = {"shop": "key-of-the-shop", "bank": "key-of-the-bank"}


def config(*names: str, queues: tuple[str, ...] = ("orders",)) -> dict[str, Any]:
    """Namespaces that all have the same queues, each with an owner's key of its own."""
    described = [
        {
            "Name": name,
            "Queues": [{"Name": queue} for queue in queues],
            "AuthorizationRules": [
                {"Name": OWNER, "PrimaryKey": KEYS[name], "Rights": ["Manage", "Send", "Listen"]}
            ],
        }
        for name in names
    ]
    return {"UserConfig": {"Namespaces": described}}


@pytest.fixture(scope="module")
def _two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("namespaces"), config("shop", "bank"), ["--development"])
    server.start()
    yield server
    assert server.stop() == os.EX_OK


@pytest.fixture
def two(_two: ServerProcess) -> Iterator[ServerProcess]:
    """A server with the namespaces `shop` and `bank`, each with a queue `orders`."""
    yield _two
    _two.refuse_trouble()


def client(server: ServerProcess, host: str, key: str, **options: Any) -> ServiceBusClient:
    """By any host name: the connection goes to the server whatever the name resolves to."""
    string = f"Endpoint=sb://{host};SharedAccessKeyName={OWNER};SharedAccessKey={key}"
    options.setdefault("connection_verify", str(server.certificate))
    return ServiceBusClient.from_connection_string(
        string,
        retry_total=0,
        custom_endpoint_address=f"sb://127.0.0.1:{server.port}",
        **options,
    )


def send(client: ServiceBusClient, text: str) -> None:
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage(text))


def taken(client: ServiceBusClient) -> list[str]:
    """What is in the queue, which is then empty."""
    with client, client.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver:
        there = receiver.peek_messages(10)
        for _ in there:
            assert receiver.receive_messages(1, max_wait_time=20)
        return [str(message) for message in there]


TRANSPORTS: Final = pytest.mark.parametrize(
    "transport", [TransportType.Amqp, TransportType.AmqpOverWebsocket], ids=["tcp", "websocket"]
)


@TRANSPORTS
def test_a_key_finds_its_namespace_under_a_host_name_that_says_nothing(two, transport) -> None:
    for name, key in KEYS.items():
        send(client(two, "localhost", key, transport_type=transport), f"to the {name}")
    for name, key in KEYS.items():
        assert taken(client(two, "127.0.0.1", key, transport_type=transport)) == [f"to the {name}"]


@TRANSPORTS
def test_a_host_name_finds_its_namespace(two, transport) -> None:
    send(client(two, "Bank.example.org", KEYS["bank"], transport_type=transport), "by name")
    assert taken(client(two, "shop.localhost", KEYS["shop"], transport_type=transport)) == []
    assert taken(client(two, "bank.localhost", KEYS["bank"], transport_type=transport)) == ["by name"]


@TRANSPORTS
def test_a_key_of_one_opens_nothing_at_the_other(two, transport) -> None:
    for host, key in (("bank.localhost", KEYS["shop"]), ("localhost", "bm8ga2V5")):
        with pytest.raises(ServiceBusError):
            send(client(two, host, key, transport_type=transport), "stolen")
    assert two.fresh_log.count("The token has an invalid signature") == 2
    assert taken(client(two, "bank.localhost", KEYS["bank"], transport_type=transport)) == []


# -- tokens and logins, one by one --------------------------------------------------


def endpoint(server: ServerProcess, name: str) -> Endpoint:
    return Endpoint("127.0.0.1", server.port, OWNER, KEYS[name])


async def put_token(requester: Requester, key: str) -> object:
    """The status that `$cbs` answers with."""
    audience = "sb://localhost/orders"
    token = make_token(audience, OWNER, key, int(time.time()) + 60)
    answer = await requester.ask("put-token", token, name=audience, type="servicebus.windows.net:sastoken")
    return answer.application_properties["status-code"]


async def test_a_connection_stays_in_the_namespace_of_its_first_token(two) -> None:
    async with await Client.connect(endpoint(two, "shop"), login=False) as connection:
        with pytest.raises(LinkRefused) as refused:
            await connection.sender("orders")
        assert refused.value.condition == "amqp:unauthorized-access"
        requester = await connection.requester("$cbs")
        assert await put_token(requester, KEYS["shop"]) == 202
        assert await put_token(requester, KEYS["bank"]) == 401
        await connection.sender("orders")


async def test_a_login_finds_its_namespace(two) -> None:
    async with await Client.connect(endpoint(two, "bank")) as connection:
        sender = await connection.sender("orders")
        await sender.send(encode_message(data=b"logged in"))
    assert taken(client(two, "localhost", KEYS["shop"])) == []
    assert taken(client(two, "localhost", KEYS["bank"])) == ["logged in"]


async def test_a_login_of_one_is_refused_by_the_name_of_the_other(two) -> None:
    with pytest.raises(ConnectionLost):
        await Client.connect(endpoint(two, "bank"), hostname="shop.localhost")


async def test_the_name_that_tls_was_asked_for_counts_too(two) -> None:
    trust = ssl.create_default_context(cafile=two.certificate)

    async def log_in(name: str) -> None:
        options = {"hostname": None, "tls": trust, "tls_name": f"{name}.localhost"}
        async with await Client.connect(endpoint(two, "bank"), **options) as connection:
            await connection.sender("orders")

    await log_in("bank")
    with pytest.raises(ConnectionLost):
        await log_in("shop")


# -- HTTP ---------------------------------------------------------------------------


def request(
    server: ServerProcess, method: str, path: str, key: str, host: str = "", rule: str = OWNER
) -> tuple[int, bytes]:
    headers = {"Authorization": make_token("http://any/", rule, key, int(time.time()) + 60)}
    if host:
        headers["Host"] = host
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request(method, path, b"text" if method == "POST" else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_http_finds_the_namespace_by_the_key_and_by_the_host(two) -> None:
    assert request(two, "POST", "/orders/messages", KEYS["bank"])[0] == 201
    assert request(two, "DELETE", "/orders/messages/head?timeout=0", KEYS["shop"])[0] == 204
    assert request(two, "DELETE", "/orders/messages/head", KEYS["bank"], "bank.localhost:80") == (
        200,
        b"text",
    )
    for name, key in KEYS.items():
        for host in ("", f"{name}.localhost"):
            status, body = request(two, "GET", "/$namespaceinfo?api-version=2021-05", key, host)
            assert status == 200 and f"<Name>{name}</Name>".encode() in body


def test_http_refuses_a_key_of_one_at_the_other(two) -> None:
    assert request(two, "POST", "/orders/messages", KEYS["shop"], "bank.localhost")[0] == 401
    assert request(two, "GET", "/$Resources/queues", KEYS["shop"], "bank.localhost")[0] == 401
    assert request(two, "GET", "/$Resources/queues", "bm8ga2V5")[0] == 401


@pytest.mark.row("B-08")
def test_one_call_empties_a_namespace_and_no_other(two) -> None:
    for key in KEYS.values():
        assert request(two, "POST", "/orders/messages", key)[0] == 201
    assert request(two, "POST", "/$reset", KEYS["shop"], "bank.localhost")[0] == 401
    assert request(two, "POST", "/$reset", KEYS["bank"]) == (200, b"")
    assert request(two, "DELETE", "/orders/messages/head?timeout=0", KEYS["bank"])[0] == 204
    assert request(two, "DELETE", "/orders/messages/head", KEYS["shop"]) == (200, b"text")


# -- the data folder ----------------------------------------------------------------


def test_a_folder_of_one_namespace_goes_on_and_may_have_more(tmp_path: Path) -> None:
    only = ServerProcess(tmp_path, namespace({"orders": {}}))
    only.start()
    first = only.connection_string
    send(ServiceBusClient.from_connection_string(first), "from before")
    assert only.stop() == os.EX_OK

    # The one that was there is called as the file calls it; what is new comes beside it.
    more = ServerProcess(tmp_path, namespace({"orders": {}}), ["--namespace", "bank"])
    more.port = only.port
    more.start()
    assert more.connection_string == first
    bank_key = (more.data / "namespaces" / "bank" / "root.key").read_text().strip()
    # An entity that is not there is an empty feed.
    status, shown = request(more, "GET", "/orders", bank_key, rule=ROOT_RULE_NAME)
    assert (status, b"QueueDescription" in shown) == (200, False), (
        "an entity that is not there is an empty feed"
    )
    assert request(more, "PUT", "/orders", bank_key, rule=ROOT_RULE_NAME)[0] == 400  # no body: but it may
    assert more.stop() == os.EX_OK

    # What a folder has is served, named or not.
    again = ServerProcess(tmp_path, namespace({}), [])
    again.port = only.port
    again.start()
    assert (
        request(again, "GET", "/$Resources/queues?api-version=2021-05", bank_key, rule=ROOT_RULE_NAME)[0]
        == 200
    )
    assert taken(ServiceBusClient.from_connection_string(again.connection_string)) == ["from before"]
    assert again.stop() == os.EX_OK
    again.refuse_trouble()
