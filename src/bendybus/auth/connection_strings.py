"""Connection strings: where a namespace is and which key opens it, read and checked.

    Endpoint=sb://HOST[:PORT]/;SharedAccessKeyName=NAME;SharedAccessKey=KEY[;EntityPath=...]

A server prints them, and this is the only parser. Messages (client/) and management
(management/) both use it, so a string that one of them takes is good for the other. No
error quotes a value, because the value could be the key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from bendybus.auth.key_ring import ROOT_RULE_NAME
from bendybus.errors import ArgumentError

__all__ = ["ConnectionString", "local_connection_string"]

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

_SCHEMES: Final = ("sb", "amqp", "amqps")


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """A namespace as every SDK is told it."""

    text: str = field(repr=False)
    host: str
    port: int | None
    """None means the usual port of the protocol."""
    tls: bool
    """False only with UseDevelopmentEmulator=true."""
    key_name: str
    key: str = field(repr=False)
    signature: str = field(repr=False)
    """A token that somebody else made, in place of a key."""
    entity: str | None

    @classmethod
    def parse(cls, text: str, token: str = "") -> ConnectionString:
        """`ArgumentError` says which part is missing, unknown or repeated.

        A `token` of an identity provider takes the place of the key, which may then be missing.
        """
        fields = _fields(text)
        endpoint, port = _endpoint(fields.get("Endpoint", ""))
        signature = token or fields.get("SharedAccessSignature", "")
        if not signature:
            for name in ("SharedAccessKeyName", "SharedAccessKey"):
                if not fields.get(name):
                    raise ArgumentError(f"The connection string lacks {name}.")
        return cls(
            text=text.strip(),
            host=endpoint.hostname or "",
            port=port,
            tls=fields.get("UseDevelopmentEmulator", "").lower() != "true",
            key_name=fields.get("SharedAccessKeyName", ""),
            key=fields.get("SharedAccessKey", ""),
            signature=signature,
            entity=fields.get("EntityPath") or None,
        )

    @property
    def netloc(self) -> str:
        """Host and port as a URL has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def local_connection_string(
    host: str, port: int, key: str | None, key_name: str = ROOT_RULE_NAME, *, tls: bool = False
) -> str:
    """What a client on this machine needs to connect to the server that listens there.

    SDKs use TLS unless it says UseDevelopmentEmulator=true. Without a key it says only where the server is.
    """
    # Nobody can connect to "every address"; this machine reaches itself through loopback.
    reachable = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    endpoint = f"[{reachable}]" if ":" in reachable else reachable
    proof = "" if key is None else f";SharedAccessKeyName={key_name};SharedAccessKey={key}"
    return f"Endpoint=sb://{endpoint}:{port}{proof}" + ("" if tls else ";UseDevelopmentEmulator=true")


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.strip().split(";"):
        if not part.strip():
            continue
        # A key may end in `=`: only the first one separates.
        name, separator, value = part.strip().partition("=")
        if not separator:
            raise ArgumentError("The connection string has a part without '='. Is it complete, and quoted?")
        known = _KNOWN.get(name.strip().lower())
        if known is None:
            raise ArgumentError(
                "The connection string has a part that is none of " + ", ".join(_KNOWN.values()) + "."
            )
        if known in fields:
            raise ArgumentError(f"The connection string has {known} twice.")
        fields[known] = value.strip()
    return fields


def _endpoint(text: str) -> tuple[SplitResult, int | None]:
    try:
        endpoint = urlsplit(text)
    except ValueError:
        # Brackets that no IPv6 address stands in.
        endpoint = urlsplit("")
    if endpoint.scheme not in _SCHEMES or not endpoint.hostname:
        raise ArgumentError("The connection string needs an Endpoint such as 'sb://host/'.")
    try:
        return endpoint, endpoint.port
    except ValueError:
        raise ArgumentError("The port in the connection string's Endpoint is not a port number.") from None
