"""`--require-tls`: a client without TLS is told what is wrong, and gets nowhere."""

from __future__ import annotations

import base64
import os
import ssl
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from bendybus.amqp.frames import AMQP_HEADER, SASL, SASL_HEADER, encode_frame
from bendybus.amqp.performatives import Close, Open, SaslInit, SaslMechanisms
from bendybus.auth.key_ring import ROOT_RULE_NAME
from bendybus.auth.sas import make_token
from bendybus.engine.sasl import plain_response
from fix_client import Endpoint
from fix_processes import run_bendybus
from fix_server import ServerProcess, namespace
from hostile.stranger import Stranger

REFUSAL = "This server requires TLS."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("tls")
    server = ServerProcess(folder, namespace({"q": {}}), ["--require-tls", "--metrics-port", "0"])
    server.start()
    yield server
    assert server.stop() == os.EX_OK
    server.refuse_trouble()


@pytest.fixture
def endpoint(server: ServerProcess) -> Endpoint:
    return Endpoint("127.0.0.1", server.port, ROOT_RULE_NAME, server.key)


@pytest.mark.parametrize("layer", ["sasl", "amqp"])
async def test_plain_amqp_is_refused_and_told_why(endpoint: Endpoint, layer: str) -> None:
    async with await Stranger.call(endpoint) as stranger:
        if layer == "sasl":
            anonymous = SaslInit("ANONYMOUS", b"", endpoint.host)
            stranger.write(SASL_HEADER + encode_frame(0, anonymous, frame_type=SASL))
        stranger.write(AMQP_HEADER)
        stranger.send(0, Open(container_id="stranger", hostname=endpoint.host))
        close = await stranger.expect(Close)
        assert close.error is not None and close.error.condition == "amqp:not-allowed"
        assert REFUSAL in str(close.error.description)
        stranger.send(0, Close())
        assert await stranger.hung_up() == b""


async def test_no_key_is_asked_for_without_tls(endpoint: Endpoint) -> None:
    async with await Stranger.call(endpoint) as stranger:
        stranger.write(SASL_HEADER)
        offered = await stranger.expect(SaslMechanisms)
        assert "PLAIN" not in map(str, offered.sasl_server_mechanisms)
        init = SaslInit("PLAIN", plain_response(endpoint.key_name, endpoint.key), endpoint.host)
        stranger.write(encode_frame(0, init, frame_type=SASL))
        await stranger.hung_up()


def test_plain_http_is_refused_but_for_health(server: ServerProcess) -> None:
    token = make_token("sb://127.0.0.1/", ROOT_RULE_NAME, server.key, int(time.time()) + 600)
    websocket = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
        "Sec-WebSocket-Protocol": "amqp",
    }
    for method, path, headers in (
        ("GET", "/q", {"Authorization": token}),
        ("POST", "/q/messages", {"Authorization": token}),
        ("GET", "/metrics", {}),
        ("GET", "/$servicebus/websocket", websocket),
    ):
        connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request(method, path, b"x" if method == "POST" else None, headers)
        answer = connection.getresponse()
        assert (answer.status, REFUSAL in answer.read().decode()) == (403, True), path
        connection.close()
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()


def test_tls_is_served_as_always(server: ServerProcess) -> None:
    trust = ssl.create_default_context(cafile=str(server.certificate))
    connection = HTTPSConnection("127.0.0.1", server.port, context=trust, timeout=20)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 200
    connection.close()
    assert "UseDevelopmentEmulator" not in server.connection_string
    with (
        ServiceBusClient.from_connection_string(
            server.connection_string,
            connection_verify=str(server.certificate),
            # Without it the SDK goes to port 5671, whatever the connection string says.
            custom_endpoint_address=f"sb://127.0.0.1:{server.port}",
        ) as client,
        client.get_queue_sender("q") as sender,
        client.get_queue_receiver("q", max_wait_time=10) as receiver,
    ):
        sender.send_messages(ServiceBusMessage("over TLS"))
        assert [str(message) for message in receiver.receive_messages(1)] == ["over TLS"]


def test_the_command_line_on_the_servers_machine_uses_tls(server: ServerProcess, tmp_path: Path) -> None:
    for command in (("queue", "list"), ("store", "list"), ("peek", "q")):
        done = run_bendybus(*command, "--data", str(server.data), environment={}, folder=tmp_path)
        assert done.returncode == 0, done.stderr


def test_a_plain_port_beyond_loopback_is_warned_of(tmp_path: Path) -> None:
    for options, warned in ((["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--require-tls"], False)):
        folder = tmp_path / str(warned)
        folder.mkdir()
        server = ServerProcess(folder, namespace({}), options)
        server.start()
        assert ("other machines can connect without TLS" in server.log.read_text()) is warned
        assert server.stop() == os.EX_OK
