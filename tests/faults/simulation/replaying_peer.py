"""A peer that puts completed messages back: all, those of a key or a session, or some that it has found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bendybus.amqp.message import decode_message
from bendybus.amqp.types import Array
from faults.simulation.ledger import Invariant, Letter
from faults.simulation.peer import KEYS, SESSIONS, Peer
from fix_client import Client, Requester

__all__ = ["ReplayerPeer"]

CHOSEN_MAX = 3


class ReplayerPeer(Peer):
    async def work(self, client: Client) -> None:
        requester = await client.requester(f"{self.entity}/$management")
        kept = await client.requester(f"{self.entity}/$completed/$management")
        for _ in range(self.random.randint(2, 6)):
            await self.pause(3)
            if self.simulation.over or client.lost:
                return
            found = await self._peek(kept)
            await self._replay(requester, *self._choose(found))

    async def _peek(self, requester: Requester) -> dict[int, Letter]:
        """What is kept, by its number."""
        page = await requester.ask(
            "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": 100}
        )
        if page.application_properties["statusCode"] != 200:
            return {}
        found: dict[int, Letter] = {}
        assert isinstance(page.value, dict)
        for entry in page.value["messages"]:
            message = decode_message(entry["message"])
            number, name = (
                message.message_annotations["x-opt-sequence-number"],
                str(message.properties.message_id),
            )
            assert isinstance(number, int)
            letter = self.ledger.find(name, self.entity)
            if letter is None:
                self.ledger.violate(Invariant.UNEXPECTED, f"{name} is kept in {self.entity}")
            else:
                found[number] = letter
        return found

    def _choose(self, found: dict[int, Letter]) -> tuple[dict[str, Any], Callable[[Letter], bool]]:
        """What to ask for, and what that means."""
        chosen = self.random.random()
        if chosen < 0.1:
            return {"dry-run": True}, lambda letter: False
        if chosen < 0.4 and found:
            numbers = self.random.sample(list(found), min(len(found), CHOSEN_MAX))
            these = [found[number] for number in numbers]
            return {"sequence-numbers": Array(int, numbers)}, lambda letter: letter in these
        if chosen < 0.6 and self.entity == "sess":
            session = f"s{self.random.randrange(SESSIONS)}"
            return {"session-id": session}, _of_stream(session)
        if chosen < 0.6:
            key = f"k{self.random.randrange(KEYS)}"
            return {"key": key}, _of_stream(key)
        return {}, lambda letter: True

    async def _replay(
        self, requester: Requester, body: dict[str, Any], means: Callable[[Letter], bool]
    ) -> None:
        replay = self.ledger.keeping.ask(self.entity, means)
        answer = await requester.ask("bendybus:replay", body)
        if answer.application_properties["statusCode"] != 200:
            condition = str(answer.application_properties.get("errorCondition"))
            self.simulation.refused(condition, f"replay: {answer}")
            return
        assert isinstance(answer.value, dict)
        count = 0 if "dry-run" in body else answer.value["count"]
        self.ledger.answer_replay(replay, count, answer.value["unavailable"])


def _of_stream(key: str) -> Callable[[Letter], bool]:
    """Of a message in no stream, nobody knows the key here."""
    return lambda letter: letter.stream is None or letter.stream.endswith(f"/{key}")
