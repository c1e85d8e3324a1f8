"""The namespaces of a server, and how a client's is found.

A host name whose first label is a namespace's name says which one is meant:
`orders.localhost`. Under any other name the client's key decides: the namespace
whose rule made the signature, or takes the login. Of several that share a key the
first is meant. A server with one namespace asks nothing: every client is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bendybus.auth.key_ring import KeyRing
from bendybus.auth.sas import SAS_PREFIX, SasToken, signer
from bendybus.broker.broker import Broker
from bendybus.domain.entities import Tier
from bendybus.errors import ArgumentError, Unauthorized
from bendybus.store.faults import StoreFaults

__all__ = [
    "CALLED_HOST",
    "NAMESPACE_DEFAULT",
    "Namespace",
    "Namespaces",
    "NewNamespace",
    "check_namespace_name",
]

NAMESPACE_DEFAULT: Final = "bendybus"

# Under this name a WebSocket's transport and a TLS connection keep the host name that was called.
CALLED_HOST: Final = "bendybus_called_host"

# A label of a host name [RFC 1123 2.1]; one that begins with a digit could be an address's first part.
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE)


def check_namespace_name(name: str) -> str:
    """The name, or `ArgumentError` when no host name could begin with it."""
    if not _NAME.fullmatch(name) or name.lower() == "localhost":
        raise ArgumentError(
            f"'{name[:80]}' cannot name one of several namespaces, because it must be part of a host name: "
            "a letter, then up to 62 letters, digits and '-', and not 'localhost'."
        )
    return name


@dataclass(eq=False, slots=True)
class Namespace:
    """What entities there are, and who may use them."""

    name: str
    broker: Broker
    keys: KeyRing
    faults: StoreFaults | None = None
    """The switches of its stores, if they may be made to fail."""
    runs_folder: Path | None = None
    """Where the runs of pipelines are remembered; None: in memory."""

    @property
    def for_development(self) -> bool:
        """Whether what tests need is allowed here: to make stores fail, to take all messages out."""
        return self.faults is not None


@dataclass(frozen=True, slots=True)
class NewNamespace:
    """A namespace that is to be created. None means the server's default."""

    name: str
    tier: Tier | None
    premium_partitions: int | None
    disable_local_auth: bool | None = None


class Namespaces:
    """All namespaces of a server. The first is the one whose connection string is shown."""

    def __init__(self) -> None:
        self._by_name: dict[str, Namespace] = {}
        self.only: Namespace | None = None
        """The one there is, while there is one and no more."""

    def __iter__(self) -> Iterator[Namespace]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._by_name

    def find(self, name: str) -> Namespace | None:
        """The namespace of that name, in any case."""
        return self._by_name.get(name.lower())

    def add(self, namespace: Namespace) -> None:
        assert namespace.name not in self, f"there are two namespaces called {namespace.name}"
        self._by_name[namespace.name.lower()] = namespace
        self._count()

    def remove(self, namespace: Namespace) -> None:
        del self._by_name[namespace.name.lower()]
        self._count()

    def _count(self) -> None:
        self.only = next(iter(self._by_name.values())) if len(self._by_name) == 1 else None

    # -- finding ------------------------------------------------------------------

    def named_by(self, *hosts: str | None) -> Namespace | None:
        """The namespace that one of these host names names, the first first; ports do not count."""
        if self.only is not None:
            return self.only
        labels = (host.partition(".")[0].partition(":")[0].lower() for host in hosts if host)
        return next((self._by_name[label] for label in labels if label in self._by_name), None)

    def signed_by(self, token_text: str) -> Namespace | None:
        """The namespace one of whose keys made this token, expired or not."""
        if self.only is not None:
            return self.only
        if not token_text.startswith(SAS_PREFIX):
            return None
        try:
            token = SasToken.parse(token_text)
            return next((each for each in self if signer(token, each.keys) is not None), None)
        except Unauthorized:
            # What is wrong with the token is told by whoever has to believe it.
            return None

    def of_request(self, headers: Mapping[str, str]) -> Namespace:
        """The namespace that an HTTP request is for: by the host name it called, else by its token.

        A request that says neither gets the first: it has no token that counts, and every namespace would
        say so.
        """
        if self.only is not None:
            return self.only
        named = self.named_by(headers.get("host"))
        found = named or self.signed_by(headers.get("authorization", "").strip()) or next(iter(self), None)
        if found is None:
            raise Unauthorized("This server has no namespace.")
        return found

    def opened_by(self, rule_name: str, key: str) -> Namespace | None:
        """The namespace that has a rule of this name with this key."""
        if self.only is not None:
            return self.only
        return next((each for each in self if each.keys.opened_by(rule_name, key)), None)
