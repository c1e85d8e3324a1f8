"""Authorization rules by their HTTP routes and the administration client, and keys that change under use."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from azure.servicebus.management import AuthorizationRule, ServiceBusAdministrationClient

from bendybus.auth.sas import make_token
from fix_server import ServerProcess, StartServer
from interop.sdk import CROSSWISE, Sdk, SdkQueue
from interop.test_authorization import ROOT, with_key


@dataclass
class Http:
    """Requests with a rule's key."""

    server: ServerProcess
    name: str = ROOT
    key: str = ""
    scope: str = ""

    def __call__(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        token = make_token(
            f"http://127.0.0.1/{self.scope}", self.name, self.key or self.server.key, int(time.time()) + 60
        )
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        content = None if body is None else json.dumps(body)
        connection.request(method, f"/{path}", content, {"Authorization": token})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        as_json = answer.getheader("content-type", "").startswith("application/json")
        return answer.status, json.loads(text) if as_json else text


@contextmanager
def admin(server: ServerProcess, connection_string: str = "") -> Iterator[ServiceBusAdministrationClient]:
    with ServiceBusAdministrationClient.from_connection_string(
        connection_string or server.connection_string, connection_verify=str(server.certificate)
    ) as client:
        yield client


def send(connection_string: str, queue: str) -> None:
    client = ServiceBusClient.from_connection_string(connection_string, retry_total=0)
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))


def test_a_namespace_rule_is_made_listed_changed_and_taken_away_over_http(start_server: StartServer) -> None:
    server = start_server({"q": {}})
    http = Http(server)
    status, made = http("PUT", "$authorizationRules/shop", {"rights": ["Send"]})
    assert status == 201
    assert (made["name"], made["rights"]) == ("shop", ["Send"])
    send(with_key(server, "shop", made["primaryKey"]), "q")
    send(with_key(server, "shop", made["secondaryKey"]), "q")
    status, listed = http("GET", "$authorizationRules")
    assert status == 200 and [rule["name"] for rule in listed["rules"]] == [ROOT, "shop"]
    assert http("GET", "$AuthorizationRules/shop") == (200, made)
    status, changed = http("PUT", "$authorizationRules/shop", {"rights": ["Manage"]})
    assert (status, changed["rights"]) == (200, ["Manage", "Send", "Listen"])
    assert changed["primaryKey"] == made["primaryKey"]
    server.kill()
    server.start()
    assert http("GET", "$authorizationRules/shop") == (200, changed)
    assert http("DELETE", "$authorizationRules/shop")[0] == 200
    assert http("DELETE", "$authorizationRules/shop")[0] == 404
    with pytest.raises(ServiceBusAuthenticationError):
        send(with_key(server, "shop", made["primaryKey"]), "q")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "shop", {"rights": []}, 400),
        ("PUT", "shop", {"rights": "Send"}, 400),
        ("PUT", "shop", {"rights": ["Own"]}, 400),
        ("PUT", "shop", {"rights": ["Send"], "primaryKey": "short"}, 400),
        ("PUT", "shop", {"rights": ["Send"], "primaryKey": 5}, 400),
        ("PUT", "shop", {"rights": ["Send"], "key": "x"}, 400),
        ("PUT", "sh%20op", {"rights": ["Send"]}, 400),
        ("PUT", "shop", ["Send"], 400),
        ("PUT", "shop", None, 400),
        ("PUT", ROOT, {"rights": ["Send"]}, 400),
        ("DELETE", ROOT, None, 400),
        ("POST", "nobody/regenerateKey", {"which": "primary"}, 404),
        ("POST", f"{ROOT}/regenerateKey", {"which": "third"}, 400),
        ("GET", f"{ROOT}/regenerateKey", None, 405),
        ("PATCH", ROOT, None, 405),
    ],
)
def test_what_no_rule_may_be_is_refused_with_an_error_document(
    server: ServerProcess, method: str, path: str, body: object, status: int
) -> None:
    answered, text = Http(server)(method, f"$authorizationRules/{path}", body)
    assert answered == status
    assert text.startswith(f"<Error><Code>{status}</Code>")


@pytest.mark.one_broker("root keys")
def test_the_root_rules_keys_can_be_changed_and_the_next_start_knows_them(start_server: StartServer) -> None:
    server = start_server({"q": {}})
    first = server.key
    http = Http(server, key=first)
    status, rule = http("POST", f"$authorizationRules/{ROOT}/regenerateKey", {"which": "primary"})
    assert status == 200 and rule["primaryKey"] != first
    assert http("GET", "$authorizationRules")[0] == 401
    assert Http(server, key=rule["secondaryKey"])("GET", "$authorizationRules")[0] == 200
    assert server.stop() == 0
    server.start()
    assert server.key == rule["primaryKey"]
    assert Http(server)("GET", f"$authorizationRules/{ROOT}") == (200, rule)


@CROSSWISE
@pytest.mark.parametrize("own", [False, True], ids=["namespace", "queue"])
def test_a_receiver_goes_on_over_a_rotation_of_both_keys(
    start_server: StartServer, sdk: Sdk, kind: str, own: bool
) -> None:
    server = start_server({"q": {"EnablePartitioning": kind == "partitioned"}})
    root = Http(server)
    rule = ("q/" if own else "") + "$authorizationRules/app"
    _, made = root("PUT", rule, {"rights": ["Send", "Listen"]})
    client = sdk.client(with_key(server, "app", made["primaryKey"]))
    sdk_queue = SdkQueue(sdk, client, "q")
    sdk_queue.send("before")
    sdk_queue.complete(*sdk_queue.receive(1))
    for which in ("secondary", "primary"):
        status, _ = root("POST", f"{rule}/regenerateKey", {"which": which})
        assert status == 200
        # The link that stands, by the very same connection: nothing is retried (OPTIONS of sdk.py).
        sdk_queue.send(f"after the {which} key")
        (message,) = sdk_queue.receive(1)
        assert str(message) == f"after the {which} key"
        sdk_queue.complete(message)
    for key in (made["primaryKey"], made["secondaryKey"]):
        with pytest.raises(ServiceBusAuthenticationError):
            send(with_key(server, "app", key), "q")
    _, now = root("GET", rule)
    for key in (now["primaryKey"], now["secondaryKey"]):
        send(with_key(server, "app", key), "q")
    for handle in (sdk_queue.sender, sdk_queue.receiver, client):
        handle.close()


def test_the_administration_client_makes_reads_and_changes_a_queues_rules(start_server: StartServer) -> None:
    server = start_server({"other": {}})
    asked = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=["Send"],
        key_name="shop",
        primary_key="a-key-of-the-shop-one",
        secondary_key="a-key-of-the-shop-two",
    )
    with admin(server) as client:
        client.create_queue("q", authorization_rules=[asked])
        for key in (asked.primary_key, asked.secondary_key):
            send(with_key(server, "shop", key), "q")
        with pytest.raises(ServiceBusAuthenticationError):
            send(with_key(server, "shop", asked.primary_key), "other")
        queue = client.get_queue("q")
        (rule,) = queue.authorization_rules
        assert (rule.key_name, rule.rights) == ("shop", ["Send"])
        assert (rule.primary_key, rule.secondary_key) == (asked.primary_key, asked.secondary_key)
        # No times were given, so none are shown, as on Azure.
        assert rule.created_at_utc is None and rule.type == "SharedAccessAuthorizationRule"
        rule.rights = ["Manage", "Send", "Listen"]
        rule.primary_key = "another-key-of-the-shop"
        queue.max_delivery_count = 3
        client.update_queue(queue)
        (changed,) = client.get_queue("q").authorization_rules
        assert changed.rights == ["Manage", "Send", "Listen"]
        queue.authorization_rules = [rule] * 13
        with pytest.raises(HttpResponseError):
            client.update_queue(queue)
        queue.authorization_rules = []
        client.update_queue(queue)
        assert not client.get_queue("q").authorization_rules
    with pytest.raises(ServiceBusAuthenticationError):
        send(with_key(server, "shop", rule.primary_key), "q")


def test_keys_are_shown_only_to_those_who_manage(start_server: StartServer) -> None:
    rules = [
        {"Name": "sender", "PrimaryKey": "key-of-the-sender", "Rights": ["Send"]},
        {"Name": "owner", "PrimaryKey": "key-of-the-owner", "Rights": ["Manage"]},
    ]
    server = start_server({"q": {}}, {"q": rules})
    status, shown = Http(server, "sender", "key-of-the-sender", "q")("GET", "q?api-version=2021-05")
    assert status == 401 and "key-of" not in shown
    _, shown = Http(server, "owner", "key-of-the-owner", "q")("GET", "q?api-version=2021-05")
    assert "key-of-the-sender" in shown and "key-of-the-owner" in shown
    assert Http(server, "sender", "key-of-the-sender", "q")("GET", "q/$authorizationRules")[0] == 401
    status, listed = Http(server, "owner", "key-of-the-owner", "q")("GET", "q/$authorizationRules")
    assert status == 200 and len(listed["rules"]) == 2
    # Who owns one queue owns nothing else.
    assert Http(server, "owner", "key-of-the-owner", "q")("GET", "$authorizationRules")[0] == 401


@pytest.mark.row("P-34")
@pytest.mark.parametrize("element", ["ForwardTo", "ForwardDeadLetteredMessagesTo"])
def test_who_forwards_to_an_entity_must_be_allowed_to_send_there(
    start_server: StartServer, element: str
) -> None:
    owner = {"Name": "owner", "PrimaryKey": "key-of-the-owner", "Rights": ["Manage"]}
    server = start_server({"mine": {}, "theirs": {}}, {"mine": [owner]})
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content><QueueDescription>'
        f"<{element}>theirs</{element}></QueueDescription></content></entry>"
    )

    def put(path: str, **tokens: str) -> int:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("PUT", f"/{path}?api-version=2021-05", body, tokens)
        status = connection.getresponse().status
        connection.close()
        return status

    ends_at = int(time.time()) + 60
    mine = make_token("sb://h/mine", "owner", "key-of-the-owner", ends_at)
    root = make_token("sb://h/theirs", ROOT, server.key, ends_at)
    supplement = {
        "ForwardTo": "ServiceBusSupplementaryAuthorization",
        "ForwardDeadLetteredMessagesTo": "ServiceBusDlqSupplementaryAuthorization",
    }[element]
    update = {"Authorization": mine, "If-Match": "*"}
    assert put("mine", **update) == 401
    assert put("mine/below", Authorization=mine) == 401
    assert put("mine", **update, **{supplement: mine}) == 401
    assert put("mine", **update, **{supplement: root}) == 200
    # What is set already may be sent back by who could not set it.
    assert put("mine", **update) == 200
