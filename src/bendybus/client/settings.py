"""Where a namespace is, how to log in to it, and how patient a client is.

Values only, so that settings travel to other processes. The key is kept out of every
printed form. Connection strings: auth/connection_strings.py. Connecting: channel.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Self

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import ArgumentError

__all__ = ["ClientSettings"]

AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    host: str
    port: int
    tls: bool = True
    key_name: str = ""
    key: str = field(default="", repr=False)
    signature: str = field(default="", repr=False)
    """A token that was made elsewhere; it cannot be renewed."""
    entity: str | None = None
    """The entity of `sender`, `receiver` and `management` if they are called without one."""
    certificate: str | None = None
    """File with the certificate to trust besides the system's: that of a Bendybus with a self-made one."""
    connect_address: tuple[str, int] | None = None
    """Where to connect instead, for a proxy or a tunnel; `host` stays the name of the server."""
    timeout_s: float = 60.0
    """How long any one answer may take."""
    retries: int = 5
    """How often an operation is retried after a transient failure."""
    retry_delay_s: float = 0.2
    """The pause before the first retry; it doubles before each further one."""
    token_lifetime_s: int = 3600

    @classmethod
    def from_connection_string(cls, text: str, *, entity: str | None = None) -> Self:
        """`Endpoint=sb://HOST[:PORT]/;SharedAccessKeyName=NAME;SharedAccessKey=KEY[;EntityPath=...]`.

        With `UseDevelopmentEmulator=true` the connection is plain TCP, else TLS.
        `ArgumentError` says what is wrong with it.
        """
        return cls.of(ConnectionString.parse(text), entity=entity)

    @classmethod
    def of(cls, given: ConnectionString, *, entity: str | None = None) -> Self:
        return cls(
            host=given.host,
            port=given.port or (AMQPS_PORT if given.tls else AMQP_PORT),
            tls=given.tls,
            key_name=given.key_name,
            key=given.key,
            signature=given.signature,
            entity=entity or given.entity,
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
