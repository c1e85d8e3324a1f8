"""The three rights of Service Bus. Manage includes the other two; nothing else implies anything."""

from __future__ import annotations

from enum import Flag

__all__ = ["Right"]


class Right(Flag):
    """A right, or several joined with `|`."""

    SEND = 1
    LISTEN = 2
    MANAGE = 4

    def allows(self, needed: Right) -> bool:
        """Whether these rights include `needed`."""
        return Right.MANAGE in self or needed in self

    @property
    def label(self) -> str:
        """As Service Bus writes it in errors and in Config.json: `Send`, or `Send, Listen`."""
        return ", ".join(single.name.capitalize() for single in self if single.name)

    @classmethod
    def named(cls, name: str) -> Right | None:
        """The right of that name in any case, or None."""
        return cls.__members__.get(name.upper())
