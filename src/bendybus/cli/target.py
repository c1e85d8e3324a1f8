"""Which server a command talks to, and what it needs to be let in.

An option comes first, then the environment, then the server that runs on the data
folder. A connection string is taken apart here for management over HTTP; for
messages it goes on as it is. The key never appears in a text made here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bendybus.errors import ConfigError

if TYPE_CHECKING:
    import ssl

__all__ = ["VARIABLES", "Target", "find_target"]

# Where a connection string is looked for, in this order.
VARIABLES: Final = ("BENDYBUS_CONNECTION_STRING", "SERVICEBUS_CONNECTION_STRING")

HTTP_PORT: Final = 80
HTTPS_PORT: Final = 443

# Longer than the longest command waits between two requests.
TOKEN_LIFE_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Target:
    """A namespace, by its connection string."""

    connection_string: str = field(repr=False)
    host: str
    port: int | None
    plain: bool
    """Whether it is spoken to without TLS: only what says UseDevelopmentEmulator=true is."""
    key_name: str
    key: str = field(repr=False)
    signature: str = field(repr=False)
    """A token made by somebody else, in place of a key."""
    certificate: str | None = None
    """File with a certificate to trust besides the system's: that of the server on this machine."""

    @classmethod
    def parse(cls, text: str) -> Target:
        """`ConfigError` says what the connection string lacks, without quoting it."""
        parts: dict[str, str] = {}
        for part in text.strip().strip(";").split(";"):
            name, separator, value = part.partition("=")
            if not separator:
                raise ConfigError("the connection string has a part without '='; is it whole, and quoted?")
            parts[name.strip().lower()] = value.strip()
        try:
            endpoint = urlsplit(parts.get("endpoint", ""))
            host, port = endpoint.hostname, endpoint.port
        except ValueError:
            host = port = None
        if not host:
            raise ConfigError("the connection string has no Endpoint=sb://HOST/")
        signature = parts.get("sharedaccesssignature", "")
        key_name, key = parts.get("sharedaccesskeyname", ""), parts.get("sharedaccesskey", "")
        if not signature and not (key_name and key):
            raise ConfigError("the connection string lacks SharedAccessKeyName or SharedAccessKey")
        plain = parts.get("usedevelopmentemulator", "").lower() == "true"
        return cls(text.strip(), host, port, plain, key_name, key, signature)

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def http_port(self) -> int:
        return self.port or (HTTP_PORT if self.plain else HTTPS_PORT)

    def tls_context(self) -> ssl.SSLContext:
        import ssl  # noqa: PLC0415 - see main.py

        context = ssl.create_default_context()
        if self.certificate is not None:
            context.load_verify_locations(self.certificate)
        return context

    def token(self) -> str:
        """For the Authorization header: over the whole namespace, as the Python SDK signs."""
        if self.signature:
            return self.signature
        # Here, since `--help` has no use for it.
        from bendybus.auth.sas import make_token  # noqa: PLC0415

        scheme = "http" if self.plain else "https"
        expires_at_s = int(time.time()) + TOKEN_LIFE_S
        return make_token(f"{scheme}://{self.netloc}", self.key_name, self.key, expires_at_s)


def find_target(
    connection_string: str | None, data: Path, environment: Mapping[str, str] = os.environ
) -> Target:
    """The namespace that is meant; `ConfigError` says how to name one."""
    for source in (connection_string, *map(environment.get, VARIABLES)):
        if source:
            return Target.parse(source)
    from bendybus.server.announcement import find_running  # noqa: PLC0415

    running = find_running(data)
    if running is None:
        raise ConfigError(
            f"no server runs on the data folder '{data}' and no other is named: start one with "
            f"'bendybus serve', or pass --connection-string, or set {VARIABLES[0]}"
        )
    certificate = data / "tls" / "server.crt"
    return replace(Target.parse(running), certificate=str(certificate) if certificate.exists() else None)
