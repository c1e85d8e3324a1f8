"""Nobody gets in without the right claim: every HTTP route, every kind of link, every management operation.

What there is to be tried is taken from the server itself, and what it should ask for from the
tables here: a route or an operation that has no entry fails the test, so none can be forgotten.
"""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, cast

import pytest
from starlette.routing import BaseRoute, Route, WebSocketRoute

from bendybus import admin
from bendybus.amqp.performatives import SENDER, Source, Target
from bendybus.amqp.types import Symbol
from bendybus.auth.sas import make_token
from bendybus.engine.sending import SendingLink
from bendybus.gateway.addresses import NodeKind
from bendybus.gateway.management import OPERATIONS
from bendybus.rest.calls import Operation
from bendybus.server import front
from bendybus.server.app import Server
from bendybus.server.settings import Settings
from fix_client import Client, ConnectionLost, Endpoint, LinkRefused, Sender
from fix_jwt import OWNER, Provider
from fix_server import ServerProcess, namespace

UNAUTHORIZED: Final = "amqp:unauthorized-access"

# Rules of `q` and, under the same names with other keys, of `other`.
RIGHTS: Final = {
    "sends": ["Send"],
    "listens": ["Listen"],
    "uses": ["Send", "Listen"],
    "owns": ["Manage"],
}
# The right that a request asks for -> who has it, and who has everything but that.
HOLDERS: Final = {"Send": "sends", "Listen": "listens", "Manage": "owns", "any": "listens"}
OTHERS: Final = {"Send": "listens", "Listen": "sends", "Manage": "uses"}

LOCK: Final = "1/7f2c1b8e-6b1c-4b52-9a3f-0d6a1f1f4a11"
SESSION: Final = "s/7f2c1b8e-6b1c-4b52-9a3f-0d6a1f1f4a11"


@dataclass(frozen=True)
class Asked:
    """A request and the right it needs; the path may have `q` in it, an entity."""

    method: str
    path: str
    right: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


REST: Final = {
    Operation.SEND: Asked("POST", "q/messages", "Send"),
    Operation.PEEK_LOCK: Asked("POST", "q/messages/head?timeout=0", "Listen"),
    Operation.RECEIVE_AND_DELETE: Asked("DELETE", "q/messages/head?timeout=0", "Listen"),
    Operation.RENEW: Asked("POST", f"q/messages/{LOCK}", "Listen"),
    Operation.UNLOCK: Asked("PUT", f"q/messages/{LOCK}", "Listen"),
    Operation.COMPLETE: Asked("DELETE", f"q/messages/{LOCK}", "Listen"),
    Operation.DEFER: Asked("POST", f"q/messages/{LOCK}/defer", "Listen"),
    Operation.DEAD_LETTER: Asked("POST", f"q/messages/{LOCK}/deadletter", "Listen"),
    Operation.LOCK_DEFERRED: Asked("POST", "q/messages/deferred/1", "Listen"),
    Operation.TAKE_DEFERRED: Asked("DELETE", "q/messages/deferred/1", "Listen"),
    Operation.ACCEPT_SESSION: Asked("POST", "q/sessions/s", "Listen"),
    Operation.RENEW_SESSION: Asked("POST", f"q/sessions/{SESSION}", "Listen"),
    Operation.RELEASE_SESSION: Asked("DELETE", f"q/sessions/{SESSION}", "Listen"),
    Operation.GET_STATE: Asked("GET", f"q/sessions/{SESSION}/state", "Listen"),
    Operation.SET_STATE: Asked("PUT", f"q/sessions/{SESSION}/state", "Listen"),
    Operation.CLEAR_STATE: Asked("DELETE", f"q/sessions/{SESSION}/state", "Listen"),
}
RULES: Final = [
    Asked("GET", "q/$authorizationRules", "Manage"),
    Asked("GET", "q/$authorizationRules/sends", "Manage"),
    Asked("PUT", "q/$authorizationRules/sends", "Manage"),
    Asked("DELETE", "q/$authorizationRules/sends", "Manage"),
    Asked("POST", "q/$authorizationRules/sends/regenerateKey", "Manage"),
]
OF_THE_NAMESPACE: Final = [
    Asked("GET", "$authorizationRules", "Manage"),
    Asked("GET", "$authorizationRules/sends", "Manage"),
    Asked("PUT", "$authorizationRules/sends", "Manage"),
    Asked("DELETE", "$authorizationRules/sends", "Manage"),
    Asked("POST", "$authorizationRules/sends/regenerateKey", "Manage"),
    Asked("GET", "$namespaceinfo", "Manage"),
    Asked("GET", "$Resources/queues", "Manage"),
    Asked("GET", "$Resources/topics", "Manage"),
    Asked("POST", "$reset", "Manage"),
]
FAULTS: Final = [
    Asked("GET", "$faults/stores", "Manage"),
    Asked("PUT", "$faults/stores/store-0", "Manage"),
    Asked("DELETE", "$faults/stores/store-0", "Manage"),
    Asked("GET", "$faults/entities", "Manage"),
    Asked("PUT", "$faults/entities/q", "Manage"),
    Asked("DELETE", "$faults/entities/q", "Manage"),
    Asked("POST", "$faults/entities/q", "Manage"),
]
STORES: Final = [
    Asked("GET", "$stores", "Manage"),
    Asked("POST", "$stores", "Manage"),
    Asked("GET", "$stores/store-0", "Manage"),
    Asked("PUT", "$stores/store-0", "Manage"),
    Asked("DELETE", "$stores/store-0", "Manage"),
]
BROKERS: Final = [
    Asked("GET", "$brokers", "Manage"),
    Asked("GET", "$brokers/a", "Manage"),
    Asked("PUT", "$brokers/a", "Manage"),
]
CONNECTIONS: Final = [Asked("GET", "$connections", "Manage"), Asked("DELETE", "$connections/1", "Manage")]
OVERVIEW: Final = [
    Asked("GET", "$overview", "Listen"),
    Asked("GET", "q/$partitions", "Listen"),
    Asked("GET", "q/$rights", "any"),
    Asked("GET", "$rights", "any"),
]
PIPELINES: Final = [
    Asked("GET", "$pipelines", "Listen"),
    Asked("GET", "$pipelines/1", "Listen"),
    Asked("PUT", "$pipelines/1", "Listen"),
]
METRICS: Final = [Asked("GET", "metrics", "Listen"), Asked("GET", "metrics?partitions=1", "Listen")]
# For the operator alone: the root key itself is not enough.
BACKUPS: Final = [Asked("GET", "$backup", "operator"), Asked("POST", "$backup", "operator")]
NAMESPACES: Final = [
    Asked("GET", "$namespaces", "operator"),
    Asked("PUT", "$namespaces/shop", "operator"),
    Asked("DELETE", "$namespaces/shop", "operator"),
]
MANAGEMENT: Final = [
    Asked("GET", "q", "Manage"),
    Asked("HEAD", "q", "Manage"),
    Asked("PUT", "q", "Manage"),
    Asked("DELETE", "q", "Manage"),
    Asked("PATCH", "q", "Manage"),
    Asked("POST", "q", "Manage"),
    Asked("OPTIONS", "q", "Manage"),
    Asked("GET", "q/subscriptions/s/rules/r", "Manage"),
    Asked("PUT", "q/subscriptions/s/rules/r", "Manage"),
    Asked("DELETE", "q/subscriptions/s/rules/r", "Manage"),
]
EVERYTHING: Final = [
    *REST.values(),
    *RULES,
    *MANAGEMENT,
    *OF_THE_NAMESPACE,
    *FAULTS,
    *STORES,
    *BROKERS,
    *CONNECTIONS,
    *OVERVIEW,
    *PIPELINES,
    *METRICS,
    *BACKUPS,
    *NAMESPACES,
]

# What the application is made of -> what is asked of it here. The first tells how the server is, not what
# is in it; what comes through a WebSocket is AMQP and has to prove itself there.
ROUTES: Final[dict[str, list[Asked] | None]] = {
    "/health GET,HEAD": None,
    "/metrics GET,HEAD": METRICS,
    "RestMessages": list(REST.values()),
    "AuthorizationRuleRoutes": [*RULES, *OF_THE_NAMESPACE[:5]],
    "/{path:path} *": [*MANAGEMENT, *OF_THE_NAMESPACE[5:]],
    "/$faults/stores GET,HEAD": FAULTS[:1],
    "/$faults/stores/{name} DELETE,PUT": FAULTS[1:3],
    "/$faults/entities GET,HEAD": FAULTS[3:4],
    "/$faults/entities/{path:path} DELETE,POST,PUT": FAULTS[4:],
    "/$backup GET,HEAD,POST": BACKUPS,
    "/$namespaces GET,HEAD": NAMESPACES[:1],
    "/$namespaces/{name} DELETE,PUT": NAMESPACES[1:],
    "/$stores GET,HEAD,POST": STORES[:2],
    "/$stores/{name} DELETE,GET,HEAD,PUT": STORES[2:],
    "/$brokers GET,HEAD": BROKERS[:1],
    "/$brokers/{name} GET,HEAD,PUT": BROKERS[1:],
    "/$connections GET,HEAD": CONNECTIONS[:1],
    "/$connections/{number} DELETE": CONNECTIONS[1:],
    "/$overview GET,HEAD": OVERVIEW[:1],
    "_EntityRoute": OVERVIEW[1:3],
    "/$rights GET,HEAD": OVERVIEW[3:],
    "/$pipelines GET,HEAD": PIPELINES[:1],
    "/$pipelines/{run} GET,HEAD,PUT": PIPELINES[1:],
    # Azure Resource Manager's, which takes other tokens (tests/unit/arm/test_access.py).
    "_ResourceRoute": None,
    # A browser's, which the portal's own process makes sign in (tests/unit/portal).
    "_PortalRoute": None,
    # Finds the namespace, whose routes are those above.
    "_NamespaceRoutes": None,
    "websocket /$servicebus/websocket": None,
    "websocket /$servicebus/websocket/": None,
    "websocket /{path:path}": None,
}

# Well-known words of paths in the sources of `admin`, each of which has its requests above.
WORDS: Final = {
    "$namespaceinfo",
    "$resources/queues",
    "$resources/topics",
    "$authorizationrules",
    "$reset",
    "/$brokers",
    "/$brokers/{name}",
    "/$stores",
    "/$stores/{name}",
    "/$faults/stores",
    "/$faults/stores/{name}",
    "/$faults/entities",
    "/$faults/entities/{path:path}",
    "/$connections",
    "/$connections/{number}",
    "/$overview",
    "/$pipelines",
    "/$pipelines/{run}",
    "/$rights",
    # The query's, and a sub-queue's, which is below its entity.
    "$skip",
    "$top",
    "/$deadletterqueue",
    "/$transfer/$deadletterqueue",
}

# As Azure has it; operations that do not exist yet may stand here, those that exist must.
MANAGEMENT_RIGHTS: Final = {
    "com.microsoft:peek-message": "Listen",
    "com.microsoft:receive-by-sequence-number": "Listen",
    "com.microsoft:batch-delete-messages": "Listen",
    "com.microsoft:renew-lock": "Listen",
    "com.microsoft:update-disposition": "Listen",
    "com.microsoft:schedule-message": "Send",
    "com.microsoft:cancel-scheduled-message": "Send",
    "com.microsoft:renew-session-lock": "Listen",
    "com.microsoft:get-session-state": "Listen",
    "com.microsoft:set-session-state": "Listen",
    "com.microsoft:get-message-sessions": "Listen",
    "com.microsoft:add-rule": "Manage",
    "com.microsoft:remove-rule": "Manage",
    "com.microsoft:enumerate-rules": "Manage",
    "bendybus:partition-info": "Listen",
    "bendybus:peek-range": "Listen",
    "bendybus:complete-up-to": "Listen",
    "bendybus:complete-numbers": "Listen",
    "bendybus:consumer-lease": "Listen",
    "bendybus:peek": "Listen",
    "bendybus:purge": "Listen",
    "bendybus:replay": "Listen",
    "bendybus:insert-messages": "Manage",
    "bendybus:get-session-states": "Listen",
    "bendybus:set-session-states": "Manage",
}

SENDS, RECEIVES = True, False
# Which way a link goes and to what -> the right, or None where everybody may attach to prove himself.
LINKS: Final[dict[tuple[NodeKind, bool], str | None]] = {
    (NodeKind.ENTITY, SENDS): "Send",
    (NodeKind.ENTITY, RECEIVES): "Listen",
    (NodeKind.MANAGEMENT, SENDS): "any",
    (NodeKind.MANAGEMENT, RECEIVES): "any",
    (NodeKind.CBS, SENDS): None,
    (NodeKind.CBS, RECEIVES): None,
}
ADDRESSES: Final = {
    NodeKind.ENTITY: ["q", "q/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue"],
    NodeKind.MANAGEMENT: ["q/$management", "q/$DeadLetterQueue/$management"],
}


# -- nothing is forgotten -----------------------------------------------------------------


def name_of(route: BaseRoute) -> str:
    if isinstance(route, Route):
        return f"{route.path} {','.join(sorted(route.methods)) if route.methods else '*'}"
    if isinstance(route, WebSocketRoute):
        return f"websocket {route.path}"
    return type(route).__name__


async def test_every_http_route_of_a_server_has_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def noted(make: Callable[..., Any]) -> Callable[..., Any]:
        def making(*parts: Any, **named: Any) -> Any:
            made.append(make(*parts, **named))
            return made[-1]

        return making

    # The server's own application, and the router of its one namespace.
    monkeypatch.setattr(front, "http_app", noted(front.http_app))
    monkeypatch.setattr(front, "Router", noted(front.Router))

    async with Server(Settings(data=tmp_path / "data", port=0, admin_port=None)):
        pass
    assert len(made) == 2
    assert {name_of(route) for router in made for route in router.routes} == set(ROUTES)


def test_every_operation_of_the_rest_api_has_an_entry() -> None:
    assert set(REST) == set(Operation)


def test_every_well_known_word_of_a_path_has_an_entry() -> None:
    found = set()
    for module in Path(admin.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                word = node.value.lower()
                if word.lstrip("/").startswith("$") and " " not in word and len(word) > 2:
                    found.add(word)
    assert found <= WORDS


def test_every_management_operation_has_an_entry() -> None:
    assert not OPERATIONS.keys() - MANAGEMENT_RIGHTS.keys()


def test_every_kind_of_link_has_an_entry() -> None:
    assert set(LINKS) == set(itertools.product(NodeKind, (SENDS, RECEIVES)))


# -- nobody gets in -----------------------------------------------------------------------


@dataclass(frozen=True)
class GuardedServer:
    endpoint: Endpoint

    def key(self, rule: str, scope: str) -> str:
        return self.endpoint.key if rule == self.endpoint.key_name else f"key-of-{rule}-over-{scope}"

    def token(self, rule: str, scope: str = "q", path: str | None = None, **changed: Any) -> str:
        """For `path`, which is the rule's own scope unless said otherwise."""
        key = changed.get("key", self.key(rule, scope))
        uri = f"sb://127.0.0.1/{scope if path is None else path}"
        return make_token(uri, rule, key, int(time.time()) + changed.get("lifetime_s", 600))

    def ask(self, method: str, path: str, token: str | None) -> tuple[int, bytes]:
        connection = HTTPConnection(self.endpoint.host, self.endpoint.port, timeout=20)
        # As through a proxy: what this machine may do without a token is not for everybody behind it.
        headers = {"X-Forwarded-For": "127.0.0.1"} | ({} if token is None else {"Authorization": token})
        connection.request(method, f"/{path}", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    rules = {
        scope: [
            {"Name": name, "PrimaryKey": f"key-of-{name}-over-{scope}", "Rights": rights}
            for name, rights in RIGHTS.items()
        ]
        for scope in ("q", "other", "")
    }
    config = namespace({"q": {}, "other": {}}, rules)
    server = ServerProcess(tmp_path_factory.mktemp("guarded"), config)
    server.start()
    yield GuardedServer(Endpoint.parse(server.connection_string))
    assert server.stop() == 0
    server.refuse_trouble()


def strangers(guarded: GuardedServer, right: str, scope: str) -> Iterator[tuple[str, str | None]]:
    """Those who may not, by what is wrong with them; `scope` is the entity in question."""
    yield "no token", None
    yield "nothing", ""
    yield "another scheme", "Basic cm9vdDpyb290"
    root = guarded.endpoint.key_name
    yield "of another namespace", guarded.token(root, "", key="key-of-another-namespace")
    yield "bad signature", guarded.token("owns", scope, key="guessed")
    yield "expired", guarded.token("owns", scope, lifetime_s=-1)
    yield "expired root", guarded.token(root, "", lifetime_s=-1)
    yield "unknown rule", guarded.token("nobody", scope, key=guarded.key("owns", scope))
    yield "for another entity", guarded.token("owns", "other")
    yield "of another entity", guarded.token("owns", "other", path=scope)
    yield "of another entity, for all", guarded.token("owns", "other", path="")
    yield "for what is below", guarded.token("owns", scope, path=f"{scope}/below/this")
    yield "for a namesake", guarded.token(root, "", path=f"{scope}2")
    yield "by dots", guarded.token("owns", "other", path=f"other/../{scope}")
    yield "from somebody we do not know", f"Bearer {Provider('ES256').token(OWNER)}"
    if right == "operator":
        yield "root", guarded.token(root, "")
        yield "root, as the operator", guarded.token("$operator", "", key=guarded.endpoint.key)
    if right in OTHERS:
        yield "wrong claim", guarded.token(OTHERS[right], scope)


@pytest.mark.parametrize("asked", EVERYTHING, ids=str)
def test_no_stranger_gets_through_an_http_route(guarded: GuardedServer, asked: Asked) -> None:
    ours = (*FAULTS, *STORES, *BROKERS, *CONNECTIONS, *BACKUPS, *NAMESPACES, *OVERVIEW, *PIPELINES)
    of_entity = asked.path.startswith("q")
    scope = "" if asked in (*OF_THE_NAMESPACE, *METRICS, *ours) and not of_entity else "q"
    refusal = b'{"error":' if asked in ours else b"<Error><Code>401</Code>"
    for kind, token in strangers(guarded, asked.right, scope):
        status, body = guarded.ask(asked.method, asked.path, token)
        assert status in (401, 403), kind
        # The management API tells a key without Manage nothing, as Azure does.
        silent = asked.method == "HEAD" or (kind == "wrong claim" and not body)
        assert silent or refusal in body, kind
    # And the one who may is let in: to an entity that does not exist, as nothing is to change.
    path = asked.path.replace("q", "nowhere", 1) if scope else asked.path
    if scope or asked.right == "any":
        signed = path.split("?")[0] if scope else ""
        holder = guarded.token(HOLDERS[asked.right], "", path=signed)
        assert guarded.ask(asked.method, path, holder)[0] not in (401, 403, 500)


DETOURS: Final = [
    "other/../{}",
    "other/%2e%2e/{}",
    "other/.%2E/{}",
    "other/%252e%252e/{}",
    "other%2f..%2f{}",
    "other%2f%2e%2e%2f{}",
    "other/..%5c{}",
    "other\\..\\{}",
    "./{}",
    "other/./../{}",
]


@pytest.mark.parametrize("asked", EVERYTHING, ids=str)
@pytest.mark.parametrize("detour", DETOURS)
def test_no_path_leads_out_of_what_a_token_is_for(guarded: GuardedServer, asked: Asked, detour: str) -> None:
    path, _, query = asked.path.partition("?")
    path = detour.format(path) + (f"?{query}" if query else "")
    for token in (guarded.token("owns", "other"), guarded.token(guarded.endpoint.key_name, "")):
        assert guarded.ask(asked.method, path, token)[0] in (401, 403)


# -- AMQP ---------------------------------------------------------------------------------


async def put(client: Client, token: str, audience: str) -> object:
    requester = await client.requester("$cbs")
    answer = await requester.ask("put-token", token, name=f"sb://127.0.0.1/{audience}")
    # Before a token is accepted, there is room for one pair of links.
    session = requester.sender.link.session
    session.end()
    client.flush()
    await client.session_ended(session)
    return answer.application_properties["status-code"]


async def attach(client: Client, address: str, sends: bool) -> str | None:
    """None when it succeeds, else the reason why not."""
    try:
        await (client.sender(address) if sends else client.receiver(address))
    except LinkRefused as refused:
        return refused.condition
    return None


@pytest.mark.parametrize(
    ("kind", "sends", "right"),
    [(kind, sends, right) for (kind, sends), right in LINKS.items() if right is not None],
    ids=str,
)
async def test_no_stranger_gets_a_link(
    guarded: GuardedServer, kind: NodeKind, sends: bool, right: str
) -> None:
    async with await Client.connect(guarded.endpoint, login=False) as client:
        for address in ADDRESSES[kind]:
            assert await attach(client, address, sends) == UNAUTHORIZED
        for who, token in strangers(guarded, right, "q"):
            if token and who not in ("wrong claim", "for what is below"):
                assert await put(client, token, "q") == 401, who
        for audience, status in (("other", 202), ("other/q", 202), ("q2", 404), ("q/below", 202)):
            assert await put(client, guarded.token(guarded.endpoint.key_name, ""), audience) == status
        assert await put(client, guarded.token("owns", "other"), "other/../q") == 401
        if right in OTHERS:
            assert await put(client, guarded.token(OTHERS[right]), "q") == 202
        for address in (*ADDRESSES[kind], *(f"other/../{each}" for each in ADDRESSES[kind])):
            assert await attach(client, address, sends) == UNAUTHORIZED, address

    async with await Client.connect(guarded.endpoint, login=False) as client:
        assert await put(client, guarded.token(HOLDERS[right]), "q") == 202
        assert await attach(client, ADDRESSES[kind][0], sends) is None


async def test_no_stranger_sends_through_one_entity_to_another(guarded: GuardedServer) -> None:
    """Anybody may attach a coordinator: Java does so before it has a token, and alone it is of no use."""

    async with await Client.connect(guarded.endpoint, login=False) as client:
        await client.coordinator()
        assert await attach(client, "q", SENDS) == UNAUTHORIZED
        assert await put(client, guarded.token("sends"), "q") == 202
        session = await client.begin()
        link = session.attach(
            "via",
            SENDER,
            source=Source(address="test"),
            target=Target(address="q"),
            properties={Symbol("com.microsoft:transfer-destination-address"): "other"},
        )
        with pytest.raises(LinkRefused) as refused:
            await Sender(client, cast(SendingLink, link)).attached()
        assert refused.value.condition == UNAUTHORIZED


async def test_no_stranger_logs_in_with_a_name_and_a_key(guarded: GuardedServer) -> None:
    for name, key in ((guarded.endpoint.key_name, "guessed"), ("nobody", guarded.endpoint.key), ("", "")):
        stranger = Endpoint(guarded.endpoint.host, guarded.endpoint.port, name, key)
        with pytest.raises(ConnectionLost):
            await Client.connect(stranger)
    listener = Endpoint(guarded.endpoint.host, guarded.endpoint.port, "listens", guarded.key("listens", "q"))
    async with await Client.connect(listener) as client:
        assert await attach(client, "q", SENDS) == UNAUTHORIZED
        assert await attach(client, "other", RECEIVES) == UNAUTHORIZED
        assert await attach(client, "q", RECEIVES) is None


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
async def test_no_management_operation_is_done_for_who_lacks_its_right(
    guarded: GuardedServer, operation: str
) -> None:
    right = MANAGEMENT_RIGHTS[operation]

    async with await Client.connect(guarded.endpoint, login=False) as client:
        for address in ADDRESSES[NodeKind.MANAGEMENT]:
            assert await put(client, guarded.token(OTHERS[right]), "q") == 202
            requester = await client.requester(address)
            answer = await requester.ask(operation, {})
            assert answer.application_properties["statusCode"] == 401
            assert answer.application_properties["errorCondition"] == UNAUTHORIZED
            # With the right it is the empty request that is wrong. On another link: the first one stands on
            # a right that this token takes away, and is closed for that.
            assert await put(client, guarded.token(HOLDERS[right]), "q") == 202
            requester = await client.requester(address)
            answer = await requester.ask(operation, {})
            assert answer.application_properties["statusCode"] not in (401, 403, 500)
