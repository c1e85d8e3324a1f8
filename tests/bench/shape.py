"""The shape of a load: what its messages, links and connections are like. Pure; load.py sends it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PLAIN", "Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What messages, links and connections are like, where they are not plain. 0: without."""

    keys: int = 0
    sessions: int = 0
    next_session: bool = False
    keep_session: bool = False
    batch: int = 0
    properties: int = 2
    id_property: str = ""
    settled: bool = False
    tls: bool = False
    connections: int = 1
    links: int = 1
    credit: int = 0
    sources: tuple[str, ...] = ()
    target: str = ""
    transactions: int = 0
    backlog: bool = False
    half_keyed: bool = False
    """Only the first half of the connections sends with keys."""

    def arguments(self) -> list[str]:
        """The generator's options, those left out that have no effect."""
        numbers = {
            "--keys": self.keys,
            "--sessions": self.sessions,
            "--batch": self.batch,
            "--properties": self.properties,
            "--connections": self.connections,
            "--links": self.links,
            "--credit": self.credit,
            "--transactions": self.transactions,
        }
        flags = {
            "--half-keyed": self.half_keyed,
            "--next-session": self.next_session,
            "--keep-session": self.keep_session,
            "--settled": self.settled,
            "--tls": self.tls,
            "--backlog": self.backlog,
        }
        texts = [("--id-property", self.id_property), ("--to", self.target)]
        texts += [("--from", source) for source in self.sources]
        arguments = [part for name, number in numbers.items() if number for part in (name, str(number))]
        arguments += [name for name, wanted in flags.items() if wanted]
        return arguments + [part for name, text in texts if text for part in (name, text)]


PLAIN = Shape()
