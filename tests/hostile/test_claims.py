"""Tokens that do not reach, have run out or were never true; links that ask for more than they may have."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from bendybus.amqp.message import DecodedMessage
from bendybus.auth.sas import make_token
from fix_client import Client, Endpoint, LinkRefused
from hostile.conftest import UnderAttack

HOUR_S = 3600

UNAUTHORIZED = "amqp:unauthorized-access"


def in_an_hour() -> int:
    return int(time.time()) + HOUR_S


async def put(client: Client, token: str, audience: str) -> DecodedMessage:
    requester = await client.requester("$cbs")
    return await requester.ask("put-token", token, name=audience, type="servicebus.windows.net:sastoken")


async def refusal(client: Client, address: str, *, sends: bool) -> str | None:
    with pytest.raises(LinkRefused) as refused:
        await (client.sender(address) if sends else client.receiver(address))
    return refused.value.condition


@pytest.mark.parametrize("address", ["target", "target/$management", "target/$DeadLetterQueue", "nowhere"])
async def test_without_a_token_every_link_is_refused(
    under_attack: UnderAttack, endpoint: Endpoint, address: str
) -> None:
    async with under_attack(), await Client.connect(endpoint, login=False) as client:
        # Whether an entity exists is not told to those who may not use it.
        assert await refusal(client, address, sends=True) == UNAUTHORIZED
        assert await refusal(client, address, sends=False) == UNAUTHORIZED


async def test_a_token_for_one_entity_opens_no_other(under_attack: UnderAttack, endpoint: Endpoint) -> None:
    async with under_attack(), await Client.connect(endpoint, login=False) as client:
        token = make_token("sb://localhost/other", "other-only", "other-key", in_an_hour())
        answer = await put(client, token, "sb://localhost/other")
        assert answer.application_properties["status-code"] == 202
        assert await refusal(client, "target", sends=True) == UNAUTHORIZED
        assert await refusal(client, "others", sends=True) == UNAUTHORIZED
        assert await refusal(client, "OTHER/../target", sends=True) == UNAUTHORIZED
        await client.sender("other")
        await client.receiver("Other/$DeadLetterQueue")


@pytest.mark.parametrize(
    ("token", "audience", "reason"),
    [
        (("sb://localhost/other", "other-only", "other-key", HOUR_S), "sb://localhost/target", "not reach"),
        (("sb://localhost/other", "other-only", "other-key", HOUR_S), "sb://localhost", "not reach"),
        (("sb://localhost", "other-only", "other-key", HOUR_S), "sb://localhost/other", "signature"),
        (("sb://localhost/other", "other-only", "another-key", HOUR_S), "sb://localhost/other", "signature"),
        (("sb://localhost/other", "nobody", "other-key", HOUR_S), "sb://localhost/other", "signature"),
        (("sb://localhost/other", "other-only", "other-key", -1), "sb://localhost/other", "expired"),
    ],
)
async def test_a_token_that_does_not_hold_is_answered_with_401(
    under_attack: UnderAttack,
    endpoint: Endpoint,
    token: tuple[str, str, str, int],
    audience: str,
    reason: str,
) -> None:
    async with under_attack(), await Client.connect(endpoint, login=False) as client:
        resource, rule, key, lifetime_s = token
        text = make_token(resource, rule, key, int(time.time()) + lifetime_s)
        answer = await put(client, text, audience)
        assert answer.application_properties["status-code"] == 401
        assert reason in str(answer.application_properties["status-description"])
        assert await refusal(client, "other", sends=True) == UNAUTHORIZED


@pytest.mark.parametrize(
    "token",
    [
        "",
        "SharedAccessSignature ",
        "SharedAccessSignature " + "sr=a&" * 5000,
        "SharedAccessSignature sr=a&sig=b&se=99999999999999999999999999&skn=c",
        "SharedAccessSignature sr=%ff%fe&sig=%00&se=-1&skn=%25%25",
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0.",
        "x" * 60_000,
    ],
    ids=lambda token: f"{token[:30]} ({len(token)})",
)
async def test_text_that_is_no_token_is_answered_with_401(
    under_attack: UnderAttack, endpoint: Endpoint, token: str
) -> None:
    async with under_attack(), await Client.connect(endpoint, login=False) as client:
        answer = await put(client, token, "sb://localhost/target")
        assert answer.application_properties["status-code"] == 401
        assert len(str(answer.application_properties["status-description"])) < 2000


@pytest.mark.parametrize("token", [None, 5, {"a": "map"}, b"bytes"])
async def test_a_token_of_the_wrong_type_is_answered_with_400(
    under_attack: UnderAttack, endpoint: Endpoint, token: object
) -> None:
    async with under_attack(), await Client.connect(endpoint, login=False) as client:
        requester = await client.requester("$cbs")
        answer = await requester.ask("put-token", token, name="sb://localhost/target")
        assert answer.application_properties["status-code"] == 400


async def test_a_rule_that_may_only_listen_cannot_send(under_attack: UnderAttack, endpoint: Endpoint) -> None:
    async with under_attack():
        listener = replace(endpoint, key_name="listener", key="listen-key")
        async with await Client.connect(listener) as client:
            assert await refusal(client, "guarded", sends=True) == UNAUTHORIZED
            assert await refusal(client, "target", sends=False) == UNAUTHORIZED
            await client.receiver("guarded")


async def test_links_are_closed_when_their_token_runs_out(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Client.connect(endpoint, login=False) as client:
        soon = int(time.time()) + 2
        token = make_token("sb://localhost/other", "other-only", "other-key", soon)
        answer = await put(client, token, "sb://localhost/other")
        assert answer.application_properties["status-code"] == 202
        receiver = await client.receiver("other", credit=10)
        error = await receiver.detached()
        assert error is not None and error.condition == UNAUTHORIZED
