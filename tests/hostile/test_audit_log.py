"""The audit log of a real server: who did what over HTTP and AMQP, who was refused, and no key in it."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from bendybus.auth.sas import make_token
from fix_client import Client, ConnectionLost, Endpoint
from fix_server import ServerProcess, StartServer

ROOT_RULE = "RootManageSharedAccessKey"
GUESSED = "a-key-that-was-guessed-and-is-wrong="
FAR_FUTURE_S = 4_000_000_000
TOPIC = {"Name": "t", "Properties": {}, "Subscriptions": [{"Name": "s"}]}
LISTENS = {"Name": "Listens", "PrimaryKey": "key-of-those-who-listen", "Rights": ["Listen"]}


def change_entities(server: ServerProcess) -> None:
    """Over HTTP, as the official client does it."""
    certificate = str(server.certificate)
    with ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=certificate
    ) as admin:
        orders = admin.create_queue("orders")
        orders.max_delivery_count = 3
        admin.update_queue(orders)
        admin.delete_queue("orders")
    request(server, "POST", "$reset", server.key)
    request(server, "PUT", "$authorizationRules/clerk", server.key, json.dumps({"rights": ["Send"]}))


def request(server: ServerProcess, method: str, path: str, key: str, body: str = "") -> int:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    token = make_token(f"http://127.0.0.1/{path}", ROOT_RULE, key, FAR_FUTURE_S)
    connection.request(method, f"/{path}", body, {"Authorization": token})
    status = connection.getresponse().status
    connection.close()
    return status


async def change_rules(server: ServerProcess) -> None:
    """Over AMQP, as the official .NET client does it; and one who may only listen tries the same."""
    client = await Client.connect(Endpoint.parse(server.connection_string))
    rule = {"rule-name": "r", "rule-description": {"sql-filter": {"expression": "n = 1"}}}
    node = await client.requester("t/Subscriptions/s/$management")
    for expected in (200, 409):
        answer = await node.ask("com.microsoft:add-rule", rule)
        assert answer.application_properties["statusCode"] == expected
    await client.close()
    listens = await Client.connect(Endpoint("127.0.0.1", server.port, "Listens", str(LISTENS["PrimaryKey"])))
    node = await listens.requester("t/Subscriptions/s/$management")
    assert (await node.ask("com.microsoft:add-rule", rule)).application_properties["statusCode"] == 401
    await listens.close()


async def be_refused(server: ServerProcess) -> None:
    with pytest.raises(ConnectionLost):
        await Client.connect(Endpoint("127.0.0.1", server.port, ROOT_RULE, GUESSED))
    wrong = server.connection_string.replace(server.key, GUESSED)
    client = ServiceBusClient.from_connection_string(wrong, retry_total=0)
    with client, pytest.raises(ServiceBusError):
        client.get_queue_sender("kept").send_messages(ServiceBusMessage("x"))
    assert request(server, "DELETE", "kept", GUESSED) == 401
    assert request(server, "DELETE", "missing", server.key) == 404
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(b"\x00\x01\x02\x03 neither this nor that")
        with suppress(ConnectionResetError):
            assert stranger.recv(100) == b""


async def whole_story(server: ServerProcess) -> None:
    change_entities(server)
    await change_rules(server)
    await be_refused(server)
    server.stop()


def check_story(lines: list[dict[str, object]]) -> None:
    told = [(line["event"], line["by"], line.get("entity") or line.get("reason")) for line in lines]
    for expected in [
        ("queue-created", "Config.json", "kept"),
        ("authorization-rule-created", "Config.json", None),
        ("server-started", "server", None),
        ("queue-created", ROOT_RULE, "orders"),
        ("queue-updated", ROOT_RULE, "orders"),
        ("queue-deleted", ROOT_RULE, "orders"),
        ("namespace-emptied", ROOT_RULE, None),
        ("authorization-rule-created", ROOT_RULE, None),
        ("rule-created", ROOT_RULE, "t/Subscriptions/s"),
        ("change-refused", ROOT_RULE, None),
        ("operation-refused", "Listens", "no-right"),
        ("login-refused", "", "wrong-key"),
        ("token-refused", "", "wrong-key"),
        ("connection-refused", "", "unknown-protocol"),
        ("server-stopping", "server", None),
    ]:
        assert expected in told, expected
    by_clients = [line for line in lines if line["by"] in (ROOT_RULE, "Listens", "")]
    assert all(str(line["peer"]).startswith("127.0.0.1:") for line in by_clients)
    assert {line["namespace"] for line in lines if line["event"] in ("queue-deleted", "rule-created")} == {
        "interop"
    }


def refuse_secrets(text: str, server: ServerProcess) -> None:
    for secret in (server.key, GUESSED, str(LISTENS["PrimaryKey"]), "sig="):
        assert secret not in text, secret


async def test_every_line_of_the_log_is_json_and_tells_who_did_what(start_server: StartServer) -> None:
    server = start_server(
        *({"kept": {}}, {"": [LISTENS]}), *("--development", "--log-format", "json"), topics=[TOPIC]
    )
    await whole_story(server)
    text = server.log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "logger"} <= line.keys() for line in lines)
    check_story([line for line in lines if line["logger"] == "bendybus.audit"])
    assert any("message" in line for line in lines)
    refuse_secrets(text, server)


async def test_the_audit_log_has_a_file_of_its_own_whatever_the_level_of_the_log(
    start_server: StartServer, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    options = ("--development", "--log-level", "error", "--audit-log", str(file))
    server = start_server({"kept": {}}, {"": [LISTENS]}, *options, topics=[TOPIC])
    await whole_story(server)
    check_story([json.loads(line) for line in file.read_text().splitlines()])
    refuse_secrets(file.read_text(), server)
    assert "bendybus.audit" not in server.log.read_text()
