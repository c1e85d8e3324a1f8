"""Who may manage, by the token in the Authorization header."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from bendybus.auth.http import authorise
from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.auth.rights import Right
from bendybus.auth.sas import make_token
from bendybus.errors import Unauthorized
from bendybus.names import Instant

KEYS = KeyRing(
    [
        AccessRule.root("root"),
        AccessRule("Sends", "sends", "", Right.SEND),
        AccessRule("Owns", "owns", "", Right.MANAGE, scope="orders"),
    ]
)
NOW = Instant(1_000_000)


def token(uri: str, rule: str = "RootManageSharedAccessKey", key: str = "root", until_s: int = 2000) -> str:
    return make_token(uri, rule, key, until_s)


@pytest.mark.parametrize(
    ("text", "path", "right", "sub_code"),
    [
        (token("https://h:1"), "orders", Right.MANAGE, None),
        (token("https://h/$Resources/Queues?api-version=2021-05"), "$Resources/Queues", None, None),
        (token("https://h/orders", "Owns", "owns"), "Orders", Right.MANAGE, None),
        (token("https://h", "Sends", "sends"), "orders", None, None),
        (token("https://h", "Sends", "sends"), "orders", Right.MANAGE, 40100),
        (token("https://h/orders", "Owns", "owns"), "orders2", None, 40104),
        (token("https://h", key="wrong"), "orders", None, 40103),
        (token("https://h", until_s=1000), "orders", None, 40106),
        ("SharedAccessSignature sr=x", "orders", None, 40105),
        ("Basic abc", "orders", None, 40105),
        ("", "orders", None, 40105),
        (None, "orders", None, 40102),
    ],
)
def test_a_token_opens_what_it_covers_and_a_refusal_says_what_is_wrong_with_it(
    text: str | None, path: str, right: Right | None, sub_code: int | None
) -> None:
    headers = {} if text is None else {"authorization": text}
    with pytest.raises(Unauthorized) if sub_code else nullcontext() as refused:
        authorise(headers, KEYS, path, right, NOW)
    if refused is not None:
        assert refused.value.sub_code == sub_code
