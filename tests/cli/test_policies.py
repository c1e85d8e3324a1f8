"""Shared access policies from the command line, against a real server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from bendybus.client import BusClient, ClientSettings, encode
from bendybus.errors import Unauthorized
from cli.conftest import Bendybus, BendybusJson
from fix_server import ServerProcess


@pytest.fixture
def policy(attempt: Bendybus) -> Iterator[str]:
    """The name of a policy of the namespace, which has at most twelve: it is deleted afterwards."""
    name = f"p-{uuid.uuid4().hex[:8]}"
    yield name
    attempt("policy", "delete", name, "--yes")


def send(connection_string: str, entity: str) -> None:
    with BusClient(ClientSettings.from_connection_string(connection_string)) as client:
        client.sender(entity).send([encode(b"x")])


def test_a_policy_is_created_changed_and_deleted_and_shows_no_key(
    bendybus: Bendybus, bendybus_json: BendybusJson, attempt: Bendybus, policy: str
) -> None:
    made = bendybus_json("policy", "create", policy, "--rights", "send")
    assert made["rights"] == ["Send"]
    again = attempt("policy", "create", policy, "--rights", "Send")
    assert (again.returncode, "already" in again.stderr) == (1, True)
    assert bendybus_json("policy", "update", policy, "--rights", "Manage")["rights"] == [
        *("Manage", "Send", "Listen")
    ]
    shown = bendybus_json("policy", "show", policy)
    listed = bendybus_json("policy", "list")
    assert shown in listed
    assert "RootManageSharedAccessKey" in [each["name"] for each in listed]
    assert not any("Key" in name for each in listed for name in each if name != "name")
    keys = bendybus_json("policy", "show", policy, "--keys")
    assert (
        keys["primaryKey"]
        not in bendybus("policy", "list").stdout + bendybus("policy", "show", policy).stdout
    )
    bendybus("policy", "delete", policy, "--yes")
    gone = attempt("policy", "show", policy)
    assert (gone.returncode, gone.stderr) == (
        1,
        f"bendybus: The namespace has no authorization rule '{policy}'.\n",
    )
    misspelt = attempt("policy", "update", policy, "--rights", "Send")
    assert misspelt.returncode == 1


def test_a_connection_string_opens_what_its_policy_allows(
    bendybus: Bendybus, policy: str, partitioned: str
) -> None:
    bendybus("policy", "create", policy, "--rights", "Send")
    for which in ((), ("--secondary",)):
        text = bendybus("policy", "connection-string", policy, *which).stdout.strip()
        send(text, partitioned)
    with BusClient(ClientSettings.from_connection_string(text)) as client, pytest.raises(Unauthorized):
        client.receiver(partitioned).check()
    bound = bendybus("policy", "connection-string", policy, "--entity", partitioned).stdout.strip()
    assert f"EntityPath={partitioned}" in bound


@pytest.mark.parametrize("between", ["Subscriptions", "subscriptions"])
def test_a_subscription_has_the_policies_of_its_topic(bendybus: Bendybus, policy: str, between: str) -> None:
    topic = f"topic-{policy}"
    bendybus("topic", "create", topic)
    bendybus("subscription", "create", topic, "all")
    bendybus("policy", "create", policy, "--rights", "Listen", "--entity", topic)
    entity = f"{topic}/{between}/all"
    bound = bendybus("policy", "connection-string", policy, "--entity", entity).stdout.strip()
    assert f"SharedAccessKeyName={policy};" in bound and f"EntityPath={entity}" in bound
    bendybus("topic", "delete", topic, "--yes")


def test_a_rotated_key_opens_nothing_and_the_other_still_does(
    bendybus: Bendybus, attempt: Bendybus, partitioned: str
) -> None:
    of_queue = ("--entity", partitioned)
    bendybus("policy", "create", "own", "--rights", "Send", *of_queue)
    old, other = (
        bendybus("policy", "connection-string", "own", *of_queue, *which).stdout.strip()
        for which in ((), ("--secondary",))
    )
    asked = attempt("policy", "rotate", "own", "--key", "primary", *of_queue)
    assert (asked.returncode, "pass --yes" in asked.stderr) == (2, True)
    new = bendybus("policy", "rotate", "own", "--key", "primary", *of_queue, "--yes").stdout.strip()
    assert new not in (old, other)
    with pytest.raises(Unauthorized):
        send(old, partitioned)
    send(other, partitioned)
    send(new, partitioned)


def test_a_token_opens_its_entity_and_is_made_without_the_server_where_the_key_is_known(
    bendybus: Bendybus, bendybus_json: BendybusJson, server: ServerProcess, policy: str, partitioned: str
) -> None:
    bendybus("policy", "create", policy, "--rights", "Send")
    endpoint = server.connection_string.partition(";")[0]

    def with_token(token: str) -> str:
        return f"{endpoint};SharedAccessSignature={token};UseDevelopmentEmulator=true"

    made = bendybus_json("policy", "token", policy, "--entity", partitioned, "--valid", "5m")
    assert made["policy"] == policy
    send(with_token(made["token"]), partitioned)
    own = bendybus("policy", "token", "--entity", partitioned).stdout.strip()
    assert "skn=RootManageSharedAccessKey" in own
    send(with_token(own), partitioned)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("token", "--valid", "unlimited"), "a token has to end"),
        (("token", "--secondary"), "needs the NAME of a policy"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(
    attempt: Bendybus, arguments: tuple[str, ...], complaint: str
) -> None:
    refused = attempt("policy", *arguments)
    assert (refused.returncode, complaint in refused.stderr) == (2, True)
