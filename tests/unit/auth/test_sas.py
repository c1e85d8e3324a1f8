"""Shared access signatures, clause by clause."""

from __future__ import annotations

from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.auth.rights import Right
from bendybus.auth.sas import SasToken, make_token, verify
from bendybus.errors import Unauthorized
from bendybus.names import Instant

EXPIRY_S = 1_900_000_000
NOW = Instant((EXPIRY_S - 60) * 1000)
RULE = AccessRule("RootManageSharedAccessKey", "SAS_KEY_VALUE", "the-second", Right.MANAGE)
RING = KeyRing([RULE])

# The one vector that other implementations agree on.
VECTOR = (
    "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2Forders"
    "&sig=0wfUzNKMIgNwcGA8%2FuuZcg34aAxbW6w9HO2hCp1i594%3D&se=1900000000&skn=RootManageSharedAccessKey"
)


def test_the_published_vector_is_made_and_believed() -> None:
    assert make_token("sb://localhost/orders", RULE.name, "SAS_KEY_VALUE", EXPIRY_S) == VECTOR
    assert verify(SasToken.parse(VECTOR), RING, NOW) is RULE


def test_either_key_signs() -> None:
    token = make_token("sb://localhost/orders", RULE.name, "the-second", EXPIRY_S)
    assert verify(SasToken.parse(token), RING, NOW) is RULE


def test_the_order_of_fields_does_not_matter() -> None:
    fields = VECTOR.removeprefix("SharedAccessSignature ").split("&")
    shuffled = "SharedAccessSignature " + "&".join(reversed(fields))
    assert verify(SasToken.parse(shuffled), RING, NOW) is RULE


def _signed_over(resource: str) -> str:
    """A token whose `sr` stands exactly as given: for clients that encode in their own way."""
    import base64
    import hashlib
    import hmac

    digest = hmac.new(b"SAS_KEY_VALUE", f"{resource}\n{EXPIRY_S}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest), safe="")
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={EXPIRY_S}&skn={RULE.name}"


@pytest.mark.parametrize(
    "resource",
    [
        "sb%3a%2f%2flocalhost%2forders",
        "sb%3A%2F%2Flocalhost%2Forders",
        "sb://localhost/orders",
        "https%3a%2f%2flocalhost%3a5300%2forders%3fapi-version%3d2021-05",
    ],
)
def test_the_resource_is_signed_as_it_stands_in_the_token(resource: str) -> None:
    token = SasToken.parse(_signed_over(resource))
    assert verify(token, RING, NOW) is RULE
    assert token.path == "orders"


def test_an_unencoded_plus_in_the_signature_stays_a_plus() -> None:
    # Found by trying: a resource whose signature has a plus in it.
    for number in range(100):
        token = _signed_over(f"sb%3A%2F%2Flocalhost%2Fq{number}")
        if "%2B" in token:
            assert verify(SasToken.parse(token.replace("%2B", "+")), RING, NOW) is RULE
            return
    pytest.fail("no signature with a plus among a hundred")


def test_a_rule_name_encoded_twice_is_understood() -> None:
    rule = AccessRule("team/ä rule", "key", "", Right.SEND)
    once = make_token("sb://localhost", rule.name, "key", EXPIRY_S)
    twice = once.replace(quote_plus(rule.name), quote_plus(quote(rule.name, safe="")))
    assert verify(SasToken.parse(twice), KeyRing([rule]), NOW) is rule


def test_the_rule_whose_key_signed_is_the_one_that_counts() -> None:
    near = AccessRule("app", "near", "", Right.SEND, "orders")
    far = AccessRule("app", "far", "", Right.LISTEN)
    ring = KeyRing([near, far])
    assert verify(SasToken.parse(make_token("sb://h/orders", "app", "near", EXPIRY_S)), ring, NOW) is near
    assert verify(SasToken.parse(make_token("sb://h/orders", "app", "far", EXPIRY_S)), ring, NOW) is far


@pytest.mark.parametrize("resource", ["sb://localhost", "sb://localhost/other", "sb://localhost/orders2"])
def test_an_entitys_key_signs_for_that_entity_alone(resource: str) -> None:
    ring = KeyRing([AccessRule("app", "key", "", Right.SEND, "orders")])
    with pytest.raises(Unauthorized, match="has an invalid signature"):
        verify(SasToken.parse(make_token(resource, "app", "key", EXPIRY_S)), ring, NOW)


@pytest.mark.parametrize(
    "changed",
    [
        VECTOR.replace("orders", "others"),
        VECTOR.replace("1900000000", "1900000001"),
        VECTOR.replace("skn=Root", "skn=root"),
        VECTOR.replace("sig=0w", "sig=0W"),
        VECTOR.replace("%3D&se", "&se"),
        VECTOR.replace("sr=sb%3A%2F%2F", "sr=sb%3a%2f%2f"),
        VECTOR.replace("sig=0wf", "sig=%C3%A4"),
    ],
)
def test_a_change_anywhere_breaks_the_signature(changed: str) -> None:
    with pytest.raises(Unauthorized, match="has an invalid signature"):
        verify(SasToken.parse(changed), RING, NOW)


def test_a_token_ends_with_its_second() -> None:
    token = SasToken.parse(VECTOR)
    assert verify(token, RING, Instant(EXPIRY_S * 1000 - 1)) is RULE
    with pytest.raises(Unauthorized, match=r"The token is expired. Expiration time: '2030-03-17T17:46:40Z'"):
        verify(token, RING, Instant(EXPIRY_S * 1000))


@pytest.mark.parametrize("field", ["sr", "sig", "se", "skn"])
def test_a_missing_field_is_named(field: str) -> None:
    parts = VECTOR.removeprefix("SharedAccessSignature ").split("&")
    kept = "&".join(part for part in parts if not part.startswith(field + "="))
    with pytest.raises(Unauthorized, match=f"lacks the field '{field}'"):
        SasToken.parse("SharedAccessSignature " + kept)


def test_a_field_given_twice_is_refused() -> None:
    with pytest.raises(Unauthorized, match="'sr' twice"):
        SasToken.parse(VECTOR + "&sr=sb%3A%2F%2Flocalhost")


@pytest.mark.parametrize("expiry", ["soon", "-5", "1e9", "٣", "9" * 30, "1900000000.5"])
def test_an_expiry_that_is_no_number_of_seconds_is_refused(expiry: str) -> None:
    token = SasToken(resource="sb%3A%2F%2Fh", signature="x", expiry=expiry, key_name="n")
    with pytest.raises(Unauthorized, match="not in seconds"):
        _ = token.expires_at


def test_a_token_of_absurd_length_is_not_read() -> None:
    with pytest.raises(Unauthorized, match="at most"):
        SasToken.parse("SharedAccessSignature sr=" + "x" * 10_000)


def test_the_signature_does_not_show_in_logs() -> None:
    assert "0wfUz" not in repr(SasToken.parse(VECTOR))


@given(st.text(max_size=200))
def test_no_text_does_worse_than_be_refused(text: str) -> None:
    with pytest.raises(Unauthorized):
        verify(SasToken.parse("SharedAccessSignature " + text), RING, NOW)
