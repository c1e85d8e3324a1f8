"""Entra ID as it is: rights by assignment, both names of a tenant, namespaces without local authentication.

Through the SDK with a credential object, over HTTP and from the command line. Roles in tokens: test_jwt.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from bendybus.auth.sas import make_token
from fix_client import Client, ConnectionLost, Endpoint
from fix_jwt import OWNER, RECEIVER, SENDER, Credential, Provider
from fix_processes import run_bendybus
from fix_server import ServerProcess, namespace, refusals

PROVIDER = Provider("RS256", "first")

TENANT = "72f988bf-86f1-41af-91ab-2d7cd011db47"
V1 = f"https://sts.windows.net/{TENANT}/"
V2 = f"https://login.microsoftonline.com/{TENANT}/v2.0"

ALICE = "11111111-aaaa-4aaa-8aaa-111111111111"
SHOP = "22222222-bbbb-4bbb-8bbb-222222222222"
CLERKS = "33333333-cccc-4ccc-8ccc-333333333333"

NEWS = {"Name": "news", "Subscriptions": [{"Name": "all"}, {"Name": "some"}]}


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("jwt") / "keys.json"
    file.write_text(PROVIDER.document)
    return file


def options(key_file: Path, *more: str) -> list[str]:
    return ["--jwt-issuer", V2, "--jwt-keys", str(key_file), *more]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, key_file: Path) -> Iterator[ServerProcess]:
    config = namespace({"orders": {}, "other": {}}, None, [NEWS])
    config["UserConfig"]["Namespaces"][0]["RoleAssignments"] = [  # type: ignore[index]
        {"Principal": f"group:{CLERKS}", "Role": SENDER, "Scope": "orders"},
        {"Principal": f"oid:{ALICE}", "Role": RECEIVER, "Scope": "news/subscriptions/all"},
    ]
    assigned = [f"oid:{ALICE}={SENDER}@orders", f"appid:{SHOP}=Send@orders", f"appid:{SHOP}=Send@news"]
    given = options(key_file, *(each for role in assigned for each in ("--jwt-role", role)))
    server = ServerProcess(tmp_path_factory.mktemp("entra"), config, given)
    server.start()
    yield server
    assert server.stop() == 0
    server.refuse_trouble()


def client_of(server: ServerProcess, *roles: str, **claims: Any) -> ServiceBusClient:
    return ServiceBusClient(
        f"127.0.0.1:{server.port}",
        Credential(PROVIDER, *roles, iss=V2, **claims),
        custom_endpoint_address=f"sb://127.0.0.1:{server.port}",
        connection_verify=str(server.certificate),
        transport_type=TransportType.Amqp,
        retry_total=0,
    )


@pytest.mark.parametrize(
    "claims",
    [{"oid": ALICE}, {"appid": SHOP}, {"azp": SHOP.upper()}, {"groups": ["another", CLERKS]}],
    ids=["oid", "appid", "azp", "group"],
)
def test_a_principal_may_do_what_is_assigned_to_it_and_no_more(
    server: ServerProcess, claims: dict[str, Any]
) -> None:
    with client_of(server, **claims) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("hello"))
        with pytest.raises(ServiceBusError), client.get_queue_sender("other") as sender:
            sender.send_messages(ServiceBusMessage("hello"))
        with pytest.raises(ServiceBusError, match="'Listen' claim"):
            client.get_queue_receiver("orders").receive_messages(max_wait_time=5)


def test_a_role_may_be_assigned_for_one_subscription(server: ServerProcess) -> None:
    with client_of(server, appid=SHOP) as client, client.get_topic_sender("news") as sender:
        sender.send_messages(ServiceBusMessage("read all about it"))
    with client_of(server, oid=ALICE) as client:
        with client.get_subscription_receiver("news", "all") as receiver:
            (message,) = receiver.receive_messages(max_wait_time=10)
            receiver.complete_message(message)
            assert str(message) == "read all about it"
            assert receiver.peek_messages(1, sequence_number=1) == []
        with pytest.raises(ServiceBusError):
            client.get_subscription_receiver("news", "some").receive_messages(max_wait_time=5)


def call(server: ServerProcess, method: str, path: str, token: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, "hello", {"Authorization": token})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.mark.parametrize("issuer", [V1, V2], ids=["version 1", "version 2"])
@pytest.mark.parametrize(
    "audience",
    [
        "https://servicebus.azure.net/",
        "80a10ef9-8168-493d-abf9-3297c4ef6e3c",
        "https://interop.servicebus.windows.net",
    ],
)
def test_tokens_of_both_versions_are_taken_for_every_audience_that_azure_has(
    server: ServerProcess, issuer: str, audience: str
) -> None:
    token = PROVIDER.token(iss=issuer, aud=audience, oid=ALICE)
    assert call(server, "POST", "/orders/messages", f"Bearer {token}")[0] == 201


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": V1.replace(TENANT, SHOP)},
        {"iss": V2.removesuffix("/v2.0")},
        {"aud": "https://another.servicebus.windows.net"},
        {"aud": "https://management.azure.com"},
        {"oid": CLERKS},
    ],
)
def test_tokens_of_others_and_for_others_are_refused(server: ServerProcess, claims: dict[str, Any]) -> None:
    token = PROVIDER.token(**{"iss": V1, "oid": ALICE} | claims)
    assert call(server, "POST", "/orders/messages", f"Bearer {token}")[0] == 401


# -- local authentication -----------------------------------------------------------------

DISABLED = "LocalAuthDisabled: Authorization failed because SAS authentication has been disabled"


@pytest.fixture(scope="module")
def without_keys(tmp_path_factory: pytest.TempPathFactory, key_file: Path) -> Iterator[ServerProcess]:
    rules = {"q": [{"Name": "own", "PrimaryKey": "key-of-the-queue", "Rights": ["Send", "Listen"]}]}
    given = options(key_file, "--disable-local-auth", "true")
    server = ServerProcess(tmp_path_factory.mktemp("without-keys"), namespace({"q": {}}, rules), given)
    server.start()
    yield server
    assert server.stop() == 0
    server.refuse_trouble()


def keyed(server: ServerProcess, name: str = "RootManageSharedAccessKey", key: str = "") -> str:
    """The connection string that clients had before."""
    key = key or (server.data / "root.key").read_text().strip()
    return (
        f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName={name};SharedAccessKey={key}"
        ";UseDevelopmentEmulator=true"
    )


def test_a_server_without_local_authentication_shows_no_key_and_says_why(without_keys: ServerProcess) -> None:
    assert without_keys.first_line.split() == [
        "ready",
        f"Endpoint=sb://127.0.0.1:{without_keys.port};UseDevelopmentEmulator=true",
    ]
    assert "local authentication is disabled" in without_keys.log.read_text()


@pytest.mark.parametrize("key", [(), ("own", "key-of-the-queue")], ids=["root rule", "rule of the queue"])
def test_a_connection_string_with_a_key_is_refused_in_azures_words(
    without_keys: ServerProcess, key: tuple[str, ...]
) -> None:
    with (
        ServiceBusClient.from_connection_string(keyed(without_keys, *key), retry_total=0) as client,
        pytest.raises(ServiceBusAuthenticationError) as refused,
        client.get_queue_sender("q") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
    assert DISABLED in str(refused.value.inner_exception)


async def test_a_login_with_a_key_is_refused(without_keys: ServerProcess) -> None:
    with pytest.raises(ConnectionLost):
        await Client.connect(Endpoint.parse(keyed(without_keys)))
    assert "login-refused" in without_keys.fresh_log
    assert "reason=local-auth-disabled" in without_keys.fresh_log


def test_http_refuses_what_a_key_has_signed(without_keys: ServerProcess) -> None:
    key = (without_keys.data / "root.key").read_text().strip()
    signed = make_token("https://h", "RootManageSharedAccessKey", key, 2_000_000_000)
    for method, path in (("POST", "/q/messages"), ("GET", "/q?api-version=2021-05"), ("GET", "/$stores")):
        status, said = call(without_keys, method, path, signed)
        assert (status, DISABLED in said) == (401, True), said
    with (
        ServiceBusAdministrationClient.from_connection_string(
            keyed(without_keys), connection_verify=str(without_keys.certificate), retry_total=0
        ) as admin,
        pytest.raises(ClientAuthenticationError, match="LocalAuthDisabled"),
    ):
        admin.get_queue("q")


def test_credentials_work_without_local_authentication(without_keys: ServerProcess) -> None:
    with client_of(without_keys, OWNER) as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("hello"))
        with client.get_queue_receiver("q") as receiver:
            (message,) = receiver.receive_messages(max_wait_time=10)
            receiver.complete_message(message)
    with ServiceBusAdministrationClient(
        f"127.0.0.1:{without_keys.port}",
        Credential(PROVIDER, OWNER, iss=V1),
        connection_verify=str(without_keys.certificate),
    ) as admin:
        admin.create_queue("made")
        admin.delete_queue("made")


def test_the_command_line_works_with_a_token(without_keys: ServerProcess, tmp_path: Path) -> None:
    def bendybus(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        at_data = (*arguments, "--data", str(without_keys.data), "-o", "json")
        return run_bendybus(*at_data, environment=environment, folder=tmp_path)

    refused = bendybus("queue", "list")
    assert refused.returncode == 1
    assert "LocalAuthDisabled" in refused.stderr and "BENDYBUS_TOKEN" in refused.stderr
    token = PROVIDER.token(OWNER, iss=V2)
    shown = bendybus("namespace", "show", BENDYBUS_TOKEN=token)
    assert json.loads(shown.stdout)["disableLocalAuth"] is True
    for command in (
        ("queue", "create", "cli"),
        ("send", "cli", "--body", "hello"),
        ("receive", "cli"),
        ("queue", "delete", "cli", "--yes"),
    ):
        done = bendybus(*command, BENDYBUS_TOKEN=token)
        assert done.returncode == 0, done.stderr
        assert command[0] != "receive" or json.loads(done.stdout)["body"] == "hello"


def start(folder: Path, given: list[str], said: dict[str, object] | None = None) -> ServerProcess:
    config = namespace({"q": {}})
    config["UserConfig"]["Namespaces"][0].update(said or {})  # type: ignore[index]
    server = ServerProcess(folder, config, given)
    server.start()
    return server


def takes_keys(server: ServerProcess) -> bool:
    key = (server.data / "root.key").read_text().strip()
    token = make_token("https://h", "RootManageSharedAccessKey", key, 2_000_000_000)
    return call(server, "POST", "/q/messages", token)[0] == 201


def test_it_is_kept_until_it_is_set_otherwise(tmp_path: Path, key_file: Path) -> None:
    for more, said, expected in (
        ((), {}, True),
        ((), {"DisableLocalAuth": True}, False),
        ((), {}, False),
        (("--disable-local-auth", "false"), {}, True),
        (("--disable-local-auth", "interop=true"), {"DisableLocalAuth": False}, False),
    ):
        server = start(tmp_path, options(key_file, *more), said)
        assert takes_keys(server) is expected, (more, said)
        assert ("SharedAccessKey=" in server.connection_string) is expected
        server.stop()
    # Without an identity provider nobody could connect.
    done = subprocess.run(
        ServerProcess(tmp_path, namespace({"q": {}})).command(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "nobody could connect" in done.stderr and len(refusals(done)) == 1


def test_it_is_set_by_the_environment_too(
    tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "DISABLE_LOCAL_AUTH": "true",
        "JWT_ISSUER": V1,
        "JWT_KEYS": str(key_file),
        "JWT_ROLE": f"oid:{ALICE}={SENDER}@q;group:{CLERKS}={RECEIVER}",
    }.items():
        monkeypatch.setenv(f"BENDYBUS_{name}", value)
    server = start(tmp_path, [])
    assert not takes_keys(server)
    token = PROVIDER.token(iss=V2, oid=ALICE)
    assert call(server, "POST", "/q/messages", f"Bearer {token}")[0] == 201
    token = PROVIDER.token(iss=V2, groups=[CLERKS])
    assert call(server, "DELETE", "/q/messages/head?timeout=5", f"Bearer {token}")[0] == 200
    server.stop()
