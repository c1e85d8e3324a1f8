"""What a token says of itself."""

from __future__ import annotations

import base64
import json

import pytest

from bendybus.auth.sas import make_token
from bendybus_portal.tokens import facts_of, is_token


def jwt(claims: object) -> str:
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "RS256"}, claims)
    )
    return f"{head}.{body}.c2lnbmF0dXJl"


def test_a_token_is_known_from_a_key():
    assert is_token(jwt({"sub": "ada"}))
    assert is_token(make_token("sb://host/", "reader", "key", 5))
    for text in ("", "c2VjcmV0", "Endpoint=sb://host", "eyJhbGciOiJIUzI1NiJ9", "a.b.c", "eyJh.b c.d"):
        assert not is_token(text)


def test_the_most_readable_name_and_the_end_are_taken():
    claims = {"sub": "00-11", "preferred_username": "ada@example.org", "exp": 1000}
    assert (facts_of(jwt(claims)).name, facts_of(jwt(claims)).ends_at) == ("ada@example.org", 1000.0)
    signed = facts_of(make_token("sb://host/", "a reader", "key", 5))
    assert (signed.name, signed.ends_at) == ("a reader", 5.0)


@pytest.mark.parametrize(
    "token", ["", "a", "a.b.c", jwt([]), jwt({"sub": 1, "exp": [1]}), "eyJ.eyJ.", jwt({"exp": "soon"})]
)
def test_a_token_that_says_nothing_is_called_token(token):
    assert (facts_of(token).name, facts_of(token).ends_at) == ("token", None)
