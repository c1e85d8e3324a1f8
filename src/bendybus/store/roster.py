"""The brokers of a cluster, as its catalog database lists them.

A broker writes a heartbeat now and then, and reads how long ago the others did. All times are those of the
database's clock, so the clocks of the brokers do not matter. Which brokers are presumed dead, and what
follows from that: cluster/membership.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["BrokerRow", "ClusterCertificate", "ClusterSecrets", "Lead", "Roster", "RosterView"]


@dataclass(frozen=True, slots=True)
class ClusterCertificate:
    """One of the certificates for TLS between brokers, with its key; both PEM."""

    certificate: str = field(repr=False)
    key: str = field(repr=False)
    shown_from_s: float = 0.0
    """When brokers begin to show it, in seconds since 1970. They trust it before."""


@dataclass(frozen=True, slots=True)
class ClusterSecrets:
    """What only the brokers of a cluster know."""

    cluster: str
    """The name of the cluster. Not a secret."""
    secret: bytes = field(repr=False)
    """Proves that a broker is a member."""
    certificate: ClusterCertificate
    """The first one."""
    root_keys: tuple[str, str] = field(repr=False)
    """The root rule's keys, primary and secondary."""


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One broker."""

    name: str
    instance: str
    """The process. A broker that is started again has another one."""
    address: str
    """Where the other brokers reach it, HOST:PORT."""
    version: str
    state: str
    """`starting`, `serving`, `leaving`, or `gone` after an orderly end."""
    stores: tuple[str, ...]
    """The names of the messaging stores that it was given."""
    silent_s: float = 0.0
    """The time since its last heartbeat."""
    joined_at_s: float = 0.0
    """When it was started, in seconds since 1970."""
    unreached: tuple[str, ...] = ()
    """Those of its stores that it has not reached for a while."""


@dataclass(frozen=True, slots=True)
class Lead:
    """The broker that makes changes of entities."""

    broker: str
    instance: str
    term: int
    """Each new one raises it."""
    revision: int
    """Each change raises it."""


@dataclass(frozen=True, slots=True)
class RosterView:
    """The result of one heartbeat."""

    brokers: Sequence[BrokerRow]
    lead: Lead
    own_silence_s: float | None
    """How long this process had been silent before; None if it is not listed: another one has its name."""


class Roster(Protocol):
    """All calls block, and are made by one thread at a time. `StoreUnavailable` if the database is away."""

    def join(self, broker: BrokerRow, dead_after_s: float) -> bool:
        """List a broker. Returns False if another process of its name was heard of since `dead_after_s`."""

    def beat(self, name: str, instance: str, state: str) -> RosterView:
        """Write a heartbeat, and read what there is."""

    def reach(self, name: str, instance: str, unreached: Sequence[str]) -> None:
        """Tell which of its stores a broker does not reach."""

    def lead(self, name: str, instance: str, after: int) -> int | None:
        """Become the broker that makes changes. Returns the new term; None if somebody else became it since
        the term `after`."""

    def close(self) -> None: ...
