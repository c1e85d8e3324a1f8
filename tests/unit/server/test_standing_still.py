"""A backup of several broker processes: the first makes it, and the others stand still at its moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bendybus.errors import ArgumentError, StoreUnavailable
from bendybus.server.backup import Backups
from bendybus.server.standing_still import GO_ON, STAND_STILL, StandingBrokers, ask_first


class Questions:
    """`BrokerQuestions` of the first broker, or of one that asks it."""

    def __init__(self, name: str, answers: dict[tuple[str, str], Any] | None = None) -> None:
        self.name = name
        self.brokers = ("b", "c")
        self.asked: list[tuple[str, str]] = []
        self.answered: dict[str, Callable[[Any], Awaitable[Any]]] = {}
        self.first: Questions | None = None
        self._answers = answers or {}

    def answer(self, what: str, kind: type, answer: Callable[[Any], Awaitable[Any]]) -> None:
        self.answered[what] = answer

    async def ask(self, broker: str, what: str, body: Any, kind: type) -> Any:
        self.asked.append((broker, what))
        if self.first is not None:
            return await self.first.answered[what](body)
        answer = self._answers.get((broker, what), True)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def cut_by(questions: Questions) -> tuple[bool, list[str]]:
    fixed: list[str] = []
    made = await StandingBrokers(questions, []).cut({}, lambda: fixed.append("rest"))
    return made, fixed


async def test_everything_is_fixed_between_the_beginning_and_the_end() -> None:
    questions = Questions("a")
    assert await cut_by(questions) == (True, ["rest"])
    assert questions.asked == [("b", STAND_STILL), ("c", STAND_STILL), ("b", GO_ON), ("c", GO_ON)]


async def test_what_was_fixed_while_a_broker_had_gone_on_does_not_count() -> None:
    assert await cut_by(Questions("a", {("c", GO_ON): False})) == (False, ["rest"])


async def test_nothing_is_fixed_if_a_broker_does_not_stand_still() -> None:
    questions = Questions("a", {("c", STAND_STILL): False})
    assert await cut_by(questions) == (False, [])
    assert questions.asked[2:] == [("b", GO_ON), ("c", GO_ON)]


async def test_the_others_go_on_if_one_cannot_be_asked() -> None:
    questions = Questions("a", {("b", STAND_STILL): StoreUnavailable("away")})
    with pytest.raises(StoreUnavailable, match="away"):
        await cut_by(questions)
    assert ("c", GO_ON) in questions.asked


async def test_a_backup_is_asked_for_at_any_broker_and_made_by_the_first(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    backups = Backups(tmp_path / "data", list)
    first, second = Questions("a"), Questions("b")
    second.first = first
    asked = [ask_first(first, "a", backups), ask_first(second, "a", Backups(tmp_path, list))]
    for number, ask in enumerate(asked):
        assert await ask(None) == backups.progress
        with pytest.raises(ArgumentError, match="inside the data folder"):
            await ask(tmp_path / "data" / "copy")
        await ask(tmp_path / f"copy-{number}")
        await backups._making
        assert (await ask(None))["folder"] == str(tmp_path / f"copy-{number}")
    assert second.asked
