"""Who a broker is, and how it proves that to the others (link.py)."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from uuid import uuid4

__all__ = ["Identity"]


@dataclass(frozen=True, slots=True)
class Identity:
    """A broker, as it shows itself to the others."""

    cluster: str
    broker: str
    secret: bytes = field(repr=False)
    """The secret that only the members know."""
    instance: str = field(default_factory=lambda: uuid4().hex)

    def mac(self, prover: str, challenge: bytes, answered: bytes) -> bytes:
        """Proves that `prover` knows the secret, to the side that has sent `challenge`."""
        text = b"\0".join((self.cluster.encode(), prover.encode(), challenge, answered))
        return hmac.digest(self.secret, text, "sha256")
