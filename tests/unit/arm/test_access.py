"""Who may use the resource manager: tokens of a provider, keys, and any token on the server's own machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from starlette.requests import Request

from bendybus.arm.access import Caller, bearer_of, is_local
from bendybus.arm.errors import Forbidden
from bendybus.auth.jwt import DEFAULT_AUDIENCES, KeySet, TrustedIssuer
from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.auth.rights import Right
from bendybus.auth.roles import WELL_KNOWN_ROLES, Role
from bendybus.broker.clock import now
from bendybus.errors import Unauthorized
from fix_jwt import ISSUER, OWNER, SENDER, Provider

PROVIDER = Provider("ES256")
ARM_AUDIENCE = "https://management.azure.com/"


class Keys:
    def current(self):
        return KeySet.parse({"keys": [PROVIDER.jwk]})

    def missed(self): ...


ISSUED = TrustedIssuer(
    ISSUER, DEFAULT_AUDIENCES, Keys(), [*WELL_KNOWN_ROLES, Role.parse("clerk=Manage@orders")]
)


def namespace(*rules, issuer=None, local_auth=True):
    return SimpleNamespace(name="shop", keys=KeyRing(rules, issuer, local_auth=local_auth))


def request(host="localhost:5300", client="127.0.0.1", authorization="Bearer token"):
    headers = [(b"host", host.encode()), (b"authorization", authorization.encode())]
    return Request(
        {"type": "http", "client": (client, 5), "headers": headers, "path": "/", "query_string": b""}
    )


# -- any token ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:5300", "127.0.0.1:5300", "[::1]:5300", "shop.localhost"]
)
@pytest.mark.parametrize("client", ["127.0.0.1", "::1"])
def test_a_request_of_this_machine_is_local(host, client):
    assert is_local(request(host, client))


@pytest.mark.parametrize(
    ("host", "client"),
    [
        # A page of another site whose name was made to lead to this machine.
        ("evil.example:5300", "127.0.0.1"),
        ("localhost.evil.example", "127.0.0.1"),
        ("[::1", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("localhost", "10.0.0.7"),
    ],
)
def test_other_requests_are_not_local(host, client):
    assert not is_local(request(host, client))
    assert not bearer_of(request(host, client), any_token=True).is_trusted


def test_any_token_is_good_only_where_the_operator_says_so():
    assert bearer_of(request(), any_token=True).is_trusted
    assert not bearer_of(request(), any_token=False).is_trusted
    for missing in ("", "Bearer", "Basic dTpw"):
        with pytest.raises(Unauthorized):
            bearer_of(request(authorization=missing), any_token=True)
    caller = Caller("token", is_trusted=True)
    caller.require(namespace(), "orders")
    caller.require_all(None)


# -- keys ---------------------------------------------------------------------------

SHOP = namespace(
    AccessRule.root("root-key"),
    AccessRule("reader", "reader-key", "", Right.LISTEN),
    AccessRule("orders-owner", "orders-key", "", Right.MANAGE, "orders"),
)


def test_a_key_opens_what_its_rule_manages():
    Caller("root-key").require(SHOP, "")
    Caller("orders-key").require(SHOP, "Orders")
    assert Caller("root-key").manages(SHOP)
    assert not Caller("orders-key").manages(SHOP)
    for token, path in (("reader-key", "orders"), ("orders-key", "plain"), ("orders-key", "")):
        with pytest.raises(Forbidden):
            Caller(token).require(SHOP, path)


def test_a_token_that_is_no_key_is_refused():
    for namespaces in ([SHOP], [namespace(AccessRule.root("root-key"), local_auth=False)], []):
        with pytest.raises(Unauthorized) as refusal:
            Caller("another-key" if namespaces == [SHOP] else "root-key").require_known(namespaces)
        assert not isinstance(refusal.value, Forbidden)


def test_no_key_creates_namespaces():
    with pytest.raises(Forbidden):
        Caller("root-key").require_all(ISSUED)


# -- tokens of a provider -----------------------------------------------------------


def test_roles_decide_and_the_audience_is_azures_management():
    shop = namespace(issuer=ISSUED.of_namespace("shop"))
    for audience in (ARM_AUDIENCE, "https://management.core.windows.net/", DEFAULT_AUDIENCES[0]):
        owner = Caller(PROVIDER.token(OWNER, aud=audience))
        owner.require(shop, "orders")
        owner.require_all(ISSUED)
    clerk = Caller(PROVIDER.token("clerk", aud=ARM_AUDIENCE))
    clerk.require(shop, "orders")
    clerk.require_known([shop])
    for refused in (
        lambda: clerk.require(shop, "plain"),
        lambda: clerk.require_all(ISSUED),
        lambda: Caller(PROVIDER.token(SENDER, aud=ARM_AUDIENCE)).require(shop, "orders"),
    ):
        with pytest.raises(Forbidden):
            refused()


def test_the_audience_of_azures_management_opens_nothing_else():
    token = PROVIDER.token(OWNER, aud=ARM_AUDIENCE)
    with pytest.raises(Unauthorized, match="another audience"):
        list(ISSUED.scopes(token, now()))


def test_an_audience_that_the_operator_has_set_is_the_only_one():
    own = TrustedIssuer(ISSUER, ("api://bus",), Keys())
    Caller(PROVIDER.token(OWNER, aud="api://bus")).require_all(own)
    with pytest.raises(Unauthorized, match="another audience"):
        Caller(PROVIDER.token(OWNER, aud=ARM_AUDIENCE)).require_all(own)


def test_a_server_without_a_provider_refuses_web_tokens():
    with pytest.raises(Unauthorized, match="not configured"):
        Caller(PROVIDER.token(OWNER)).require_known([SHOP])
