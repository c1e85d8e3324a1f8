"""Questions of one broker to the others: who answers, and what happens if one does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bendybus.cluster.serving import Service
from bendybus.errors import ArgumentError, Unavailable
from bendybus.server import broker_questions
from bendybus.server.broker_questions import QUESTION_CALL, BrokerQuestions
from fix_cluster import Member, members


def asking(member: Member) -> BrokerQuestions:
    """The member asks others, and answers them."""
    questions = BrokerQuestions(lambda: member.cluster)
    calls = {**member.following.calls(), QUESTION_CALL: questions.serve}
    member.service._calls = calls
    assert isinstance(member.service, Service)
    return questions


@asynccontextmanager
async def three() -> AsyncIterator[list[BrokerQuestions]]:
    async with members("abc") as cluster:
        yield [asking(member) for member in cluster]


async def test_every_other_broker_answers_with_its_own() -> None:
    async with three() as (first, *rest):
        for each in rest:

            async def double(number: int, name: str = each.name) -> list[object]:
                return [name, number * 2]

            each.answer("double", int, double)
        found = await first.ask_all("double", 21, list[str | int])
        assert found == {"b": ["b", 42], "c": ["c", 42]}
        assert (first.name, first.owners) == ("a", {"store-a": "a", "store-b": "b", "store-c": "c"})


async def test_a_broker_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_questions, "ANSWER_BYTES_MAX", 100)
    async with three() as (first, second, third):

        async def never(_: None) -> str:
            return await asyncio.get_running_loop().create_future()

        async def too_much(_: None) -> str:
            return "x" * 200

        async def strange(_: None) -> list[int]:
            return [1]

        async def name(_: None) -> str:
            return third.name

        second.answer("hangs", type(None), never)
        third.answer("hangs", type(None), name)
        assert await first.ask_all("hangs", None, str, 0.05) == {"c": "c"}
        second.answer("large", type(None), too_much)
        assert await first.ask_all("large", None, str) == {}
        second.answer("strange", type(None), strange)
        assert await first.ask_all("strange", None, str) == {}
        with pytest.raises(Unavailable, match="does not answer"):
            await first.ask("b", "hangs", None, str, 0.05)
        with pytest.raises(Unavailable, match="no broker 'd'"):
            await first.ask("d", "hangs", None, str)


async def test_a_large_answer_that_repeats_itself_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_questions, "ANSWER_BYTES_MAX", 300_000)
    async with three() as (first, second, _):
        counted = [(f'bendybus_x{{entity="{number}"}}', "namespace", number) for number in range(20_000)]

        async def count(_: None) -> list[tuple[str, str, int]]:
            return counted

        second.answer("figures", type(None), count)
        assert await first.ask("b", "figures", None, list[tuple[str, str, int]]) == counted


async def test_one_broker_is_asked_and_its_refusal_is_raised() -> None:
    async with three() as (first, second, _):

        async def refuse(body: list[str]) -> None:
            raise ArgumentError(f"not {body[0]}")

        second.answer("refuses", list[str], refuse)
        with pytest.raises(ArgumentError, match="not this"):
            await first.ask("b", "refuses", ["this"], type(None))
