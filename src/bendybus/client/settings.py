"""Where a namespace is and how to log in to it: a connection string, read and checked.

Values only, so that settings travel to other processes; the key is kept out of
every printed form. Nothing is connected here (channel.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Self
from urllib.parse import urlsplit

from bendybus.errors import ArgumentError

__all__ = ["ClientSettings"]

AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671

_KNOWN: Final = {
    name.lower(): name
    for name in (
        "Endpoint",
        "EntityPath",
        "SharedAccessKeyName",
        "SharedAccessKey",
        "SharedAccessSignature",
        "UseDevelopmentEmulator",
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    host: str
    port: int
    tls: bool = True
    key_name: str = ""
    key: str = field(default="", repr=False)
    signature: str = field(default="", repr=False)
    """A token somebody else made; it cannot be renewed."""
    entity: str | None = None
    """What sender, receiver and management mean when they are given no entity."""
    certificate: str | None = None
    """File with the certificate to trust besides the system's: that of a Bendybus with a self-made one."""
    connect_address: tuple[str, int] | None = None
    """Where to connect instead, for a proxy or a tunnel; the name in `host` is still the one asked for."""
    timeout_s: float = 60.0
    """How long any one answer may take."""
    retries: int = 5
    """How often an operation that failed for a passing reason is tried again."""
    retry_delay_s: float = 0.2
    """Before the first of these; twice as long before each further one."""
    token_lifetime_s: int = 3600

    @classmethod
    def from_connection_string(cls, text: str, *, entity: str | None = None) -> Self:
        """`Endpoint=sb://HOST[:PORT]/;SharedAccessKeyName=NAME;SharedAccessKey=KEY[;EntityPath=...]`.

        With `UseDevelopmentEmulator=true` the connection is plain TCP, else TLS.
        No error of this function quotes a value: it could be the key.
        """
        fields = _fields(text)
        endpoint = urlsplit(fields.get("Endpoint", ""))
        if endpoint.scheme not in ("sb", "amqp", "amqps") or not endpoint.hostname:
            raise ArgumentError("The connection string needs an Endpoint such as 'sb://host/'.")
        try:
            port = endpoint.port
        except ValueError:
            raise ArgumentError("The port in the connection string's Endpoint is not a number.") from None
        if "SharedAccessSignature" not in fields:
            for name in ("SharedAccessKeyName", "SharedAccessKey"):
                if not fields.get(name):
                    raise ArgumentError(f"The connection string lacks {name}.")
        tls = fields.get("UseDevelopmentEmulator", "false").lower() != "true"
        return cls(
            host=endpoint.hostname,
            port=port or (AMQPS_PORT if tls else AMQP_PORT),
            tls=tls,
            key_name=fields.get("SharedAccessKeyName", ""),
            key=fields.get("SharedAccessKey", ""),
            signature=fields.get("SharedAccessSignature", ""),
            entity=entity or fields.get("EntityPath") or None,
        )

    def with_entity(self, entity: str) -> Self:
        return replace(self, entity=entity)

    def audience(self, entity: str) -> str:
        """What a token for this entity is made out to."""
        return f"sb://{self.host}/{entity}"

    def named_entity(self, entity: str | None) -> str:
        entity = (entity or self.entity or "").strip("/")
        if not entity:
            raise ArgumentError("Which entity? Neither the call nor the connection string (EntityPath) says.")
        return entity


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.strip().split(";"):
        if not part.strip():
            continue
        # A key may end in `=`: only the first one separates.
        name, separator, value = part.strip().partition("=")
        known = _KNOWN.get(name.strip().lower())
        if not separator or known is None:
            raise ArgumentError(
                "The connection string has a part that is none of " + ", ".join(_KNOWN.values()) + "."
            )
        if known in fields:
            raise ArgumentError(f"The connection string has {known} twice.")
        fields[known] = value.strip()
    return fields
