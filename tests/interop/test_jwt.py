"""Tokens of an identity provider: the SDK with a credential object, and HTTP with a bearer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest
from azure.servicebus import TransportType
from azure.servicebus.exceptions import ServiceBusAuthorizationError, ServiceBusConnectionError
from azure.servicebus.management import ServiceBusAdministrationClient

from bendybus.amqp.message import encode_message
from bendybus.amqp.performatives import Accepted
from fix_client import Client, Endpoint
from fix_jwt import ISSUER, OWNER, RECEIVER, SENDER, AsyncCredential, Credential, Provider
from fix_links import ConnectionLost, LinkRefused
from fix_server import ServerProcess, namespace
from interop.sdk import CROSSWISE, AsyncSdk, Sdk, SdkQueue

PROVIDER = Provider("RS256", "first")
QUEUES = {"unpartitioned": {}, "partitioned": {"EnablePartitioning": True}, "rolled": {}}


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("jwt") / "keys.json"
    file.write_text(PROVIDER.document)
    return file


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory, key_file: Path) -> Iterator[ServerProcess]:
    """A server that trusts the provider."""
    options = ["--jwt-issuer", ISSUER, "--jwt-keys", str(key_file), "--jwt-role", "clerk=Send@partitioned"]
    server = ServerProcess(tmp_path_factory.mktemp("trusting"), namespace(QUEUES), options)
    server.start()
    yield server
    assert server.stop() == os.EX_OK
    server.refuse_trouble()


def sdk_queue_of(server: ServerProcess, sdk: Sdk, queue: str, provider: Provider, *roles: str) -> SdkQueue:
    credential = (AsyncCredential if isinstance(sdk, AsyncSdk) else Credential)(provider, *roles)
    client = sdk.client_with_credential(
        f"127.0.0.1:{server.port}",
        credential,
        custom_endpoint_address=f"sb://127.0.0.1:{server.port}",
        connection_verify=str(server.certificate),
        transport_type=TransportType.Amqp,
    )
    return SdkQueue(sdk, client, queue)


@CROSSWISE
def test_roles_decide_what_a_credential_may_do(
    trusting: ServerProcess, sdk: Sdk, kind: str, pool: ThreadPoolExecutor
) -> None:
    sender = sdk_queue_of(trusting, sdk, kind, PROVIDER, SENDER)
    sender.send("hello")
    with pytest.raises(ServiceBusAuthorizationError, match="'Listen' claim"):
        sender.receive_one()
    receiver = sdk_queue_of(trusting, sdk, kind, PROVIDER, RECEIVER)
    message = receiver.receive_one()
    assert str(message) == "hello"
    receiver.complete(message)
    with pytest.raises(ServiceBusAuthorizationError, match="'Send' claim"):
        receiver.send("x")
    for sdk_queue in (sender, receiver):
        sdk_queue.close_with(pool)


@CROSSWISE
def test_a_role_that_is_worth_nothing_here_opens_nothing(
    trusting: ServerProcess, sdk: Sdk, kind: str, pool: ThreadPoolExecutor
) -> None:
    for provider, role, reason in (
        (PROVIDER, "Reader", "No role in the token, and none assigned to its bearer"),
        (Provider("RS256", "first"), OWNER, "no key of the issuer made it"),
    ):
        sdk_queue = sdk_queue_of(trusting, sdk, kind, provider, role)
        # So the SDK says "not authenticated" of a server that it was given an address for.
        with pytest.raises(ServiceBusConnectionError):
            sdk_queue.send("x")
        assert reason in trusting.fresh_log
        sdk_queue.close_with(pool)


def test_the_administration_client_takes_a_credential(trusting: ServerProcess) -> None:
    with ServiceBusAdministrationClient(
        f"127.0.0.1:{trusting.port}", Credential(PROVIDER, OWNER), connection_verify=str(trusting.certificate)
    ) as client:
        client.create_queue("by-token")
        assert client.get_queue("by-token").name == "by-token"
        client.delete_queue("by-token")


def request(server: ServerProcess, method: str, path: str, token: str) -> int:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, "hello", {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_a_bearer_sends_and_receives_over_http(trusting: ServerProcess) -> None:
    path = "/unpartitioned/messages"
    assert request(trusting, "POST", path, PROVIDER.token(SENDER)) == 201
    assert request(trusting, "DELETE", f"{path}/head?timeout=5", PROVIDER.token(SENDER)) == 401
    assert request(trusting, "DELETE", f"{path}/head?timeout=5", PROVIDER.token(RECEIVER)) == 200
    assert request(trusting, "POST", path, PROVIDER.token(RECEIVER)) == 401
    assert request(trusting, "POST", path, PROVIDER.token(SENDER, exp=1)) == 401
    assert request(trusting, "POST", path, PROVIDER.token("clerk")) == 401
    assert request(trusting, "POST", "/partitioned/messages", PROVIDER.token("clerk")) == 201
    assert request(trusting, "DELETE", "/unpartitioned", PROVIDER.token(SENDER)) == 401
    assert request(trusting, "GET", "/$namespaceinfo", PROVIDER.token(OWNER)) == 200


def test_keys_are_rolled_over_by_replacing_the_file(trusting: ServerProcess, key_file: Path) -> None:
    old, new = key_file.read_text(), Provider("ES256", "second")
    path = "/rolled/messages"
    assert request(trusting, "POST", path, new.token(SENDER)) == 401
    draft = key_file.with_name("draft")
    draft.write_text(new.document)
    draft.rename(key_file)
    assert request(trusting, "POST", path, new.token(SENDER)) == 201
    assert request(trusting, "POST", path, PROVIDER.token(SENDER)) == 401
    key_file.write_text(old)
    assert request(trusting, "POST", path, PROVIDER.token(SENDER)) == 201


def test_a_server_that_trusts_nobody_takes_no_tokens_of_others(server: ServerProcess) -> None:
    assert request(server, "POST", "/usual-unpartitioned-0/messages", PROVIDER.token(OWNER)) == 401


async def test_a_client_logs_in_with_a_token_in_the_place_of_a_key(trusting: ServerProcess) -> None:
    """As azure-servicebus-jms does with a credential: SASL PLAIN under the name `$jwt`."""
    endpoint = Endpoint.parse(trusting.connection_string)
    good, bad = PROVIDER.token(SENDER), Provider().token(SENDER)
    async with await Client.connect(replace(endpoint, key_name="$jwt", key=good)) as client:
        sender = await client.sender("unpartitioned")
        assert await sender.send(encode_message(data=b"x")) == [Accepted()]
        with pytest.raises(LinkRefused) as refused:
            await client.receiver("unpartitioned")
        assert refused.value.condition == "amqp:unauthorized-access"
    with pytest.raises(ConnectionLost):
        await Client.connect(replace(endpoint, key_name="$jwt", key=bad))
