"""One moment for the stores of several broker processes, for a backup (`serve --brokers N`).

The first broker makes the backup. All files are on its machine, so it copies those of the others too. At the
moment of the cut (broker/cut.py) the writers of all processes wait. The first broker asks the others to stand
still, fixes everything, and lets them continue. If one of them did not stand still until then, all try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bendybus.broker.broker import Broker
from bendybus.broker.cut import StandStill, cut
from bendybus.broker.stores import AttachedStore
from bendybus.server.backup import Backups
from bendybus.server.backup_routes import AskBackups
from bendybus.server.broker_questions import BrokerQuestions
from bendybus.store.protocol import MessagingStore

__all__ = ["StandingBrokers", "ask_first", "answer_standing"]

# Questions to other brokers.
STAND_STILL: Final = "stand-still"
GO_ON: Final = "go-on"
BACKUP: Final = "backup"


def answer_standing(others: BrokerQuestions, broker: Broker) -> None:
    """Stand still when the first broker asks for it."""
    standing: list[StandStill] = []

    async def stand_still(_: None) -> bool:
        for store in broker.stores:
            store.refuse_away()
        standing.append(StandStill(list(broker.stores)))
        return await standing[-1].begin()

    async def go_on(_: None) -> bool:
        ended = [await each.end() for each in standing]
        standing.clear()
        return len(ended) == 1 and ended[0]

    others.answer(STAND_STILL, type(None), stand_still)
    others.answer(GO_ON, type(None), go_on)


class StandingBrokers:
    """`OtherBrokers` of a backup, for the first broker."""

    def __init__(self, others: BrokerQuestions, stores: Sequence[MessagingStore]) -> None:
        """`stores`: those of the other brokers. They are not open here."""
        self._others = others
        self.stores = stores

    async def cut(self, images: Mapping[AttachedStore, Callable[[], None]], rest: Callable[[], None]) -> bool:
        """`cut` over the stores of this broker, while all others stand still."""
        try:
            stood = await self._ask_all(STAND_STILL)
            if stood and images:
                stood = await cut(images, rest)
            elif stood:
                await asyncio.to_thread(rest)
        finally:
            went_on = await self._ask_all(GO_ON)
        return stood and went_on

    async def _ask_all(self, what: str) -> bool:
        asked = (self._others.ask(name, what, None, bool) for name in list(self._others.brokers))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return all(answers)


def ask_first(others: BrokerQuestions, first: str, backups: Backups) -> AskBackups:
    """How a broker begins a backup and follows it: the first one makes it, whichever is asked."""

    async def ask_here(folders: list[str]) -> dict[str, Any]:
        for folder in folders:
            backups.begin(Path(folder))
        return backups.progress

    async def ask(folder: Path | None) -> dict[str, Any]:
        folders = [] if folder is None else [str(folder)]
        if first == others.name:
            return await ask_here(folders)
        return await others.ask(first, BACKUP, folders, dict[str, Any])

    others.answer(BACKUP, list[str], ask_here)
    return ask
