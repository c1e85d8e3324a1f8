"""The other brokers of a server, as the routes of one broker see them.

Some of our routes show what every broker has: its partitions, its connections, its stores. The broker that
has the catalog answers a client, and asks the others. A route says in one place what its broker answers to
such a question (`answer`) and what it asks (`ask_all`). How brokers talk: server/broker_questions.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol, TypeVar

__all__ = ["OtherBrokers"]

B = TypeVar("B")
T = TypeVar("T")


class OtherBrokers(Protocol):
    @property
    def name(self) -> str:
        """The name of this broker."""

    @property
    def brokers(self) -> Collection[str]:
        """The names of the others, whether they can be reached or not."""

    @property
    def owners(self) -> Mapping[str, str]:
        """The broker of each messaging store, as far as is known here; empty text if nobody owns it."""

    def answer(self, what: str, kind: type[B], answer: Callable[[B], Awaitable[object]]) -> None:
        """What this broker answers when another one asks `what`. `kind`: the type of what comes with it."""

    async def ask_all(self, what: str, body: object, kind: type[T]) -> dict[str, T]:
        """What the others answer, by broker. One that does not answer in time is left out."""

    async def ask(self, broker: str, what: str, body: object, kind: type[T]) -> T:
        """What one of the others answers. Raises what it raises, or `Unavailable`."""
