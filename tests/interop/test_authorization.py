"""Who may do what: keys, tokens and their end, rules with some rights, entities that are not there."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote_plus
from uuid import uuid4

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from bendybus.amqp.message import encode_message
from fix_client import Client, Endpoint, LinkRefused
from fix_server import RULES, Kind, NewQueue, ServerProcess, StartServer
from interop.conftest import Connect
from interop.sdk import CROSSWISE, AsyncSdk, Sdk, SdkQueue

ROOT = "RootManageSharedAccessKey"


def with_key(server: ServerProcess, name: str, key: str) -> str:
    return (
        f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName={name};SharedAccessKey={key};"
        "UseDevelopmentEmulator=true"
    )


def with_token(server: ServerProcess, token: str) -> str:
    return f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessSignature={token};UseDevelopmentEmulator=true"


def sign(server: ServerProcess, path: str, expires_at_s: float) -> str:
    """A shared access signature, made from its public description alone."""
    resource = quote_plus(f"sb://127.0.0.1:{server.port}/{path}")
    to_sign = f"{resource}\n{int(expires_at_s)}".encode()
    signature = base64.b64encode(hmac.digest(server.key.encode(), to_sign, hashlib.sha256)).decode()
    return (
        f"SharedAccessSignature sr={resource}&sig={quote_plus(signature)}&se={int(expires_at_s)}&skn={ROOT}"
    )


async def test_without_a_sasl_layer_there_is_no_right_until_a_token_brings_one(
    server: ServerProcess, new_queue: NewQueue, kind: Kind
) -> None:
    """As the JavaScript SDK connects when its connection string has a signature."""
    queue = new_queue(kind)

    endpoint = Endpoint.parse(server.connection_string)
    async with await Client.connect(endpoint, login=False, sasl_mechanism=None) as client:
        for attach in (client.sender, client.receiver):
            with pytest.raises(LinkRefused) as refused:
                await attach(queue)
            assert refused.value.condition == "amqp:unauthorized-access"
        cbs = await client.requester("$cbs")
        token = sign(server, queue, time.time() + 600)
        audience = f"sb://127.0.0.1:{server.port}/{queue}"
        answer = await cbs.ask("put-token", token, type="servicebus.windows.net:sastoken", name=audience)
        assert answer.application_properties["status-code"] == 202
        await (await client.sender(queue)).send(encode_message(data=b"x"))
        assert len(await (await client.receiver(queue, deletes=True)).drain(5)) == 1


@pytest.fixture
def admin(server: ServerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=str(server.certificate), retry_total=0
    ) as client:
        yield client


@pytest.fixture
def queue(new_queue: NewQueue, kind: Kind) -> str:
    return new_queue(kind)


@CROSSWISE
@pytest.mark.parametrize("name", [ROOT, "Nobody"])
def test_a_wrong_key_opens_nothing(server: ServerProcess, connect: Connect, queue: str, name: str) -> None:
    with pytest.raises(ServiceBusAuthenticationError):
        connect(with_key(server, name, "bm90IHRoZSBrZXk="), queue).send("x")
    assert "The token has an invalid signature" in server.fresh_log


@CROSSWISE
def test_a_token_opens_its_entity_and_no_other(
    server: ServerProcess, connect: Connect, queue: str, new_queue: NewQueue, kind: Kind
) -> None:
    token = sign(server, queue, time.time() + 600)
    connect(with_token(server, token), queue).send("x")
    with pytest.raises(ServiceBusAuthenticationError):
        connect(with_token(server, token), new_queue(kind)).send("x")
    assert f"The token is for '{queue}' and does not reach" in server.fresh_log


@CROSSWISE
def test_a_token_opens_nothing_after_its_end(server: ServerProcess, connect: Connect, queue: str) -> None:
    with pytest.raises(ServiceBusAuthenticationError):
        connect(with_token(server, sign(server, queue, time.time() - 60)), queue).send("x")
    assert "ExpiredToken: The token is expired. Expiration time: " in server.fresh_log


class Untruthful:
    """Gives a token, and says that it lasts for an hour, so that only the server knows its end."""

    def __init__(self, token: str) -> None:
        self._token = AccessToken(token, int(time.time()) + 3600)

    def get_token(self, *_: str, **__: object) -> AccessToken:
        return self._token


class UntruthfulAsync(Untruthful):
    async def get_token(self, *_: str, **__: object) -> AccessToken:
        return self._token


def test_a_link_ends_with_its_token(
    server: ServerProcess, sdk_pairs: list[tuple[Sdk, Kind]], new_queue: NewQueue, pool: ThreadPoolExecutor
) -> None:
    sdk_queues = []
    for sdk, kind in sdk_pairs:
        queue = new_queue(kind)
        token = sign(server, queue, time.time() + 4)
        client = sdk.client_with_credential(
            f"127.0.0.1:{server.port}",
            (UntruthfulAsync if isinstance(sdk, AsyncSdk) else Untruthful)(token),
            custom_endpoint_address=f"sb://127.0.0.1:{server.port}",
            connection_verify=str(server.certificate),
            transport_type=TransportType.Amqp,
        )
        sdk_queues.append(SdkQueue(sdk, client, queue))
        assert sdk_queues[-1].is_empty()
    for sdk_queue in sdk_queues:
        with pytest.raises(ServiceBusAuthorizationError, match="'Listen' claim"):
            sdk_queue.receive_one()
        sdk_queue.close_with(pool)


@CROSSWISE
def test_who_may_send_may_not_listen(server: ServerProcess, connect: Connect, queue: str) -> None:
    sdk_queue = connect(with_key(server, "Sends", RULES["Sends"][0]), queue)
    sdk_queue.send("x")
    with pytest.raises(ServiceBusAuthorizationError, match="'Listen' claim"):
        sdk_queue.receive_one()


@CROSSWISE
def test_who_may_listen_may_not_send(server: ServerProcess, connect: Connect, queue: str) -> None:
    sdk_queue = connect(with_key(server, "Listens", RULES["Listens"][0]), queue)
    assert sdk_queue.is_empty()
    with pytest.raises(ServiceBusAuthorizationError, match="'Send' claim"):
        sdk_queue.send("x")


@pytest.mark.parametrize(
    "use", [lambda sdk_queue: sdk_queue.send("x"), SdkQueue.receive_one], ids=["send", "receive"]
)
def test_a_token_for_an_entity_that_does_not_exist_is_answered_with_404(
    server: ServerProcess, connect: Connect, use: Callable[[SdkQueue], object]
) -> None:
    """Azure's answer too; the Python SDK makes an authentication error of it."""
    with pytest.raises(ServiceBusAuthenticationError) as refused:
        use(connect(server.connection_string, "Nowhere"))
    told = str(refused.value.inner_exception)
    assert "Status code: 404" in told
    assert "The messaging entity 'sb://127.0.0.1/Nowhere' could not be found." in told


def test_a_subscription_that_does_not_exist_is_not_found(
    server: ServerProcess, admin: ServiceBusAdministrationClient
) -> None:
    topic = f"topic-{uuid4().hex}"
    admin.create_topic(topic)
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        receiver = client.get_subscription_receiver(topic, "none")
        missing = f"'sb://127.0.0.1/{topic}/Subscriptions/none' could not be found"
        with pytest.raises(MessagingEntityNotFoundError, match=missing):
            receiver.receive_messages(max_wait_time=20)


async def test_cbs_knows_the_paths_of_entities_and_of_their_parts(start_server: StartServer) -> None:
    server = start_server({"q": {}, "deep/er/queue": {}})
    known = ("", "q", "Q", "q/$management", "q/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue/$management")
    known += ("deep/er/queue", "deep/er", "deep", "$management")
    unknown = ("nowhere", "nowhere/$management", "nowhere/$DeadLetterQueue", "qq", "dee")
    unknown += ("nowhere/Subscriptions/s", "nowhere/q")

    endpoint = Endpoint.parse(server.connection_string)
    async with await Client.connect(endpoint, login=False) as client:
        cbs = await client.requester("$cbs")

        async def put(path: str) -> tuple[object, object]:
            token, audience = sign(server, "", time.time() + 600), f"amqps://host:1/{path}"
            answer = await cbs.ask("put-token", token, name=audience)
            told = answer.application_properties
            return told["status-code"], told["status-description"]

        for path in known:
            assert (await put(path))[0] == 202, path
        for path in unknown:
            says = f"The messaging entity 'sb://host/{path}' could not be found."
            assert await put(path) == (404, says)


async def test_a_client_that_was_told_of_a_missing_entity_can_use_it_once_it_exists(
    server: ServerProcess, admin: ServiceBusAdministrationClient
) -> None:
    """On the connection on which it was told."""
    name = f"later-{uuid4().hex}"

    endpoint = Endpoint.parse(server.connection_string)
    async with await Client.connect(endpoint, login=False) as client:
        cbs = await client.requester("$cbs")
        token, audience = sign(server, "", time.time() + 600), f"sb://127.0.0.1:{server.port}/{name}"
        for status in (404, 202):
            answer = await cbs.ask("put-token", token, name=audience)
            assert answer.application_properties["status-code"] == status
            if status == 404:
                with pytest.raises(LinkRefused, match=f"'sb://[^/]+/{name}' could not be found") as told:
                    await client.sender(name)
                assert told.value.condition == "amqp:not-found"
                await asyncio.to_thread(admin.create_queue, name)
        await (await client.sender(name)).send(encode_message(data=b"x"))


def test_a_queues_own_rule_opens_that_queue_alone(start_server: StartServer) -> None:
    key = "Y2xlcms="
    clerk = {"Name": "clerk", "PrimaryKey": key, "SecondaryKey": key, "Rights": ["Send"]}
    server = start_server({"mine": {}, "other": {}}, {"mine": [clerk]})
    own = ServiceBusClient.from_connection_string(with_key(server, "clerk", key), retry_total=0)
    with own, own.get_queue_sender("mine") as sender:
        sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ServiceBusAuthenticationError):
            own.get_queue_sender("other").send_messages(ServiceBusMessage("x"))
        with pytest.raises(ServiceBusAuthorizationError):
            own.get_queue_receiver("mine").receive_messages(max_wait_time=10)
