"""What a connection may do after its logins and tokens."""

from __future__ import annotations

import pytest

from bendybus.auth import claims as claims_module
from bendybus.auth.claims import Claim, Claims, log_in, put_token
from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.auth.rights import Right
from bendybus.auth.sas import make_token
from bendybus.errors import QuotaExceeded, Unauthorized
from bendybus.names import Instant

NOW = Instant(1_800_000_000_000)
LATER_S = 1_800_000_600
LATER = Instant(LATER_S * 1000)
RING = KeyRing(
    [
        AccessRule.root("root-key"),
        AccessRule("reader", "reader-key", "", Right.LISTEN),
        AccessRule("orders-sender", "orders-key", "", Right.SEND, "orders"),
    ]
)


def _claims(*held: Claim) -> Claims:
    claims = Claims()
    for claim in held:
        claims.add(claim, NOW)
    return claims


@pytest.mark.parametrize("path", ["q", "Q", "q/$management", "q/$DeadLetterQueue", "q/$Transfer/$x"])
def test_a_claim_covers_its_entity_and_everything_below(path: str) -> None:
    _claims(Claim("q", Right.LISTEN, LATER)).require(path, Right.LISTEN, NOW)


@pytest.mark.parametrize("path", ["q2", "q-other", "", "$management", "q/../q2", "q/%2e%2e/q2"])
def test_a_claim_covers_nothing_else(path: str) -> None:
    with pytest.raises(Unauthorized):
        _claims(Claim("q", Right.MANAGE, LATER)).require(path, Right.LISTEN, NOW)


def test_a_claim_for_a_subqueue_does_not_cover_the_queue() -> None:
    with pytest.raises(Unauthorized):
        _claims(Claim("q/$deadletterqueue", Right.LISTEN, LATER)).require("q", Right.LISTEN, NOW)


def test_what_is_missing_is_said_as_service_bus_says_it() -> None:
    with pytest.raises(Unauthorized) as refused:
        _claims(Claim("Orders", Right.SEND)).require("Orders", Right.LISTEN, NOW)
    assert str(refused.value) == (
        "Unauthorized access. 'Listen' claim(s) are required to perform this operation. Resource: 'Orders'"
    )


def test_claims_of_several_scopes_add_up() -> None:
    claims = _claims(Claim("", Right.LISTEN, LATER), Claim("q", Right.SEND, LATER))
    claims.require("q", Right.SEND, NOW)
    claims.require("q", Right.LISTEN, NOW)
    with pytest.raises(Unauthorized):
        claims.require("other", Right.SEND, NOW)


def test_a_claim_ends_with_its_token() -> None:
    claims = _claims(Claim("q", Right.SEND, LATER))
    claims.require("q", Right.SEND, Instant(LATER - 1))
    with pytest.raises(Unauthorized):
        claims.require("q", Right.SEND, LATER)


def test_a_renewed_token_takes_the_place_of_the_old_one() -> None:
    claims = _claims(Claim("q", Right.SEND, LATER), Claim("q", Right.SEND, Instant(LATER + 1000)))
    claims.require("q", Right.SEND, LATER)
    assert claims.expires("q", Right.SEND) == LATER + 1000


def test_a_token_never_takes_the_place_of_a_login() -> None:
    claims = _claims(Claim("", Right.MANAGE), Claim("", Right.LISTEN, LATER))
    claims.require("q", Right.SEND, Instant(LATER + 1))


def test_expiry_is_the_last_of_all_claims_that_give_the_right() -> None:
    soon = Instant(LATER - 1000)
    claims = _claims(Claim("q", Right.LISTEN, soon), Claim("", Right.MANAGE, LATER))
    assert claims.expires("q/$management", Right.LISTEN) == LATER
    assert claims.expires("q", Right.SEND) == LATER
    assert _claims(Claim("q", Right.LISTEN, soon)).expires("q", Right.SEND) == 0
    assert _claims(Claim("q", Right.LISTEN, soon), Claim("", Right.LISTEN)).expires("q", Right.LISTEN) is None


def test_a_connection_cannot_hoard_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "CLAIMS_MAX", 3)
    claims = _claims(*(Claim(f"q{number}", Right.SEND, LATER) for number in range(3)))
    with pytest.raises(QuotaExceeded):
        claims.add(Claim("one-more", Right.SEND, LATER), NOW)
    claims.add(Claim("q1", Right.SEND, Instant(LATER + 1)), NOW)
    # The two that have ended make room.
    claims.add(Claim("one-more", Right.SEND, Instant(LATER + 1)), LATER)
    claims.require("one-more", Right.SEND, LATER)


def test_a_login_gives_its_rules_rights_over_its_rules_scope() -> None:
    assert log_in(RING, "reader", "reader-key", NOW) == [Claim("", Right.LISTEN)]
    assert log_in(RING, "orders-sender", "orders-key", NOW) == [Claim("orders", Right.SEND)]


@pytest.mark.parametrize(("name", "key"), [("reader", "root-key"), ("nobody", "reader-key"), ("reader", "")])
def test_a_login_with_the_wrong_name_or_key_is_refused(name: str, key: str) -> None:
    with pytest.raises(Unauthorized):
        log_in(RING, name, key, NOW)


@pytest.mark.parametrize(
    "audience",
    [
        "sb://localhost/orders",
        "amqp://localhost:5672/Orders",
        "amqps://else.where/orders",
        "https://h/orders/",
    ],
)
def test_a_token_gives_its_rules_rights_over_the_audience(audience: str) -> None:
    token = make_token("sb://localhost/orders", "orders-sender", "orders-key", LATER_S)
    assert put_token(RING, token, audience, NOW) == Claim("orders", Right.SEND, LATER)


def test_a_namespace_token_gives_no_more_than_was_asked_for() -> None:
    token = make_token("sb://localhost/", "reader", "reader-key", LATER_S)
    assert put_token(RING, token, "sb://localhost/q/$management", NOW).path_prefix == "q/$management"
    assert put_token(RING, token, "sb://localhost", NOW).path_prefix == ""


@pytest.mark.parametrize(
    "audience", ["sb://localhost", "sb://localhost/orders2", "sb://localhost/orders/../x"]
)
def test_a_token_does_not_reach_beyond_its_resource(audience: str) -> None:
    token = make_token("sb://localhost/orders", "RootManageSharedAccessKey", "root-key", LATER_S)
    with pytest.raises(Unauthorized):
        put_token(RING, token, audience, NOW)


def test_an_expired_token_is_refused_with_the_time() -> None:
    token = make_token("sb://localhost/orders", "orders-sender", "orders-key", LATER_S)
    with pytest.raises(Unauthorized, match=r"ExpiredToken: The token is expired. Expiration time: '2027-"):
        put_token(RING, token, "sb://localhost/orders", LATER)


@pytest.mark.parametrize("text", ["eyJhbGciOi.eyJhdWQi.c2ln", "Bearer eyJhbGciOi.eyJhdWQi.c2ln"])
def test_a_jwt_is_told_from_its_text_and_refused_by_name(text: str) -> None:
    with pytest.raises(Unauthorized, match="JWT validation is not configured"):
        put_token(RING, text, "sb://localhost/orders", NOW)


@pytest.mark.parametrize("text", ["", "password", "sharedaccesssignature sr=x"])
def test_a_text_of_no_known_kind_is_refused(text: str) -> None:
    with pytest.raises(Unauthorized, match="no known kind"):
        put_token(RING, text, "sb://localhost/orders", NOW)
