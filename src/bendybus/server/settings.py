"""Everything that can be set about a server, checked before anything is opened.

`Settings` is what the command line and tests build; the composition root (app.py)
reads it and nothing else. What may be shown and what may be exposed is decided here
too: the connection string, and which keys are refused where. The data folder's own
root key: store/folder.py.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bendybus.broker.health import STALL_AFTER_S
from bendybus.domain.entities import PREMIUM_PARTITIONS, Tier
from bendybus.errors import ConfigError
from bendybus.server.memory_limit import memory_limit

__all__ = [
    "SAS_KEY_VARIABLE",
    "STORES_DEFAULT",
    "WELL_KNOWN_KEY",
    "Settings",
    "is_loopback",
    "refuse_exposed_keys",
    "sas_key_from",
]

SAS_KEY_VARIABLE: Final = "BENDYBUS_SAS_KEY"

# The key of the vendor's emulator, which is public.
WELL_KNOWN_KEY: Final = "SAS_KEY_VALUE"

# Measured: with two stores, sending and receiving at the same time is as fast as with one; with four, sending
# alone and receiving alone are slower (docs/benchmarks.md). With one store, nothing would work while it is
# unavailable.
STORES_DEFAULT: Final = 2
STORES_MAX: Final = 64
# Less than a second would count a short delay as an outage; more than clients wait is of no use.
STALL_AFTER_LEAST_S: Final = 1.0
STALL_AFTER_MOST_S: Final = 60.0
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server. They have been checked; `ConfigError` says what is wrong."""

    data: Path = Path(".data")
    host: str = "127.0.0.1"
    port: int = 5672
    admin_port: int | None = 5300
    """A second port that serves the same things, since the emulator's clients expect one; None for none."""
    metrics_port: int | None = None
    """A port that shows metrics and health, and nothing else, without a token; None for none."""
    stores: int | None = None
    """How many messaging stores; None: as many as the data folder has, `STORES_DEFAULT` in a new one."""
    store_urls: tuple[str, ...] = field(default=(), repr=False)
    """Messaging stores outside of the data folder, instead of those in it."""
    cluster: str | None = field(default=None, repr=False)
    """The catalog of the cluster that this server is a broker of, a URL; None if it is alone."""
    broker_name: str = field(default_factory=socket.gethostname)
    """This broker's name in its cluster."""
    cluster_address: str = "127.0.0.1:0"
    """Where this broker listens for the others, and where they reach it."""
    allowed_stores: tuple[str, ...] = field(default=(), repr=False)
    """Folders and URLs of stores that may be attached over the network; none: nothing may be."""
    tier: Tier | None = None
    """The tier of namespaces for which none is set; None: as it is, Standard in new ones."""
    premium_partitions: int | None = None
    """`premiumMessagingPartitions` of namespaces for which it is not set; None: as it is, 2 in new ones."""
    namespace_tiers: Mapping[str, Tier] = field(default_factory=dict)
    """By the namespace's name, in lower case."""
    namespace_premium_partitions: Mapping[str, int] = field(default_factory=dict)
    """By the namespace's name, in lower case."""
    disable_local_auth: bool | None = None
    """Whether keys and SAS tokens are refused in namespaces for which it is not set; None: as it is."""
    namespace_disable_local_auth: Mapping[str, bool] = field(default_factory=dict)
    """By the namespace's name, in lower case."""
    config: Path | None = None
    """The official emulator's Config.json: the namespaces and queues to have from the start."""
    namespaces: tuple[str, ...] = ()
    """Further namespaces, in addition to those of Config.json and of the data folder."""
    sas_key: str | None = field(default=None, repr=False)
    """The root rule's key in every namespace; None: each namespace's own, kept in the data folder."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    require_tls: bool = False
    """Whether connections without TLS are refused, except requests for `/health`."""
    host_names: tuple[str, ...] = ()
    """Further names for the self-made certificate."""
    jwt_issuer: str | None = None
    """The identity provider whose tokens are accepted; None for none."""
    jwt_audiences: tuple[str, ...] = ()
    """The audiences that its tokens must have; none: those of Azure's clients."""
    jwt_keys: str | None = None
    """Its public keys, a JWKS document: a file or an https URL."""
    jwt_roles: tuple[str, ...] = ()
    """What principals of its tokens may do, `WHO=WHAT[@SCOPE]`, in addition to Azure's own three roles."""
    development: bool = False
    """Whether faults may be switched on: for people who test their own applications."""
    arm_any_token: bool = False
    """Whether the resource manager (arm/) accepts any token of a client on this machine."""
    portal: bool = True
    """Whether `/portal` shows the portal."""
    stall_after_s: float = STALL_AFTER_S
    """How long a messaging store may take for one call before it counts as unavailable."""
    memory: str | None = None
    """The memory that connections may use, such as `2GB`; None: a share of the machine's memory."""
    telemetry: bool = False
    """Whether traces, metrics and logs are exported, as the OTEL_ environment variables say."""
    log_level: str = "info"
    log_format: str = "text"
    audit_log: Path | None = None
    """A file for the audit log, in JSON lines; None: it is a part of the server's log."""
    handshake_timeout_s: float = 20.0
    connections_max: int = 16_384

    def __post_init__(self) -> None:
        self._check_number("--port", self.port, 0, 65_535)
        if self.admin_port is not None:
            self._check_number("--admin-port", self.admin_port, 0, 65_535)
        if self.metrics_port is not None:
            self._check_number("--metrics-port", self.metrics_port, 0, 65_535)
            if self.metrics_port and self.metrics_port in (self.port, self.admin_port):
                raise ConfigError(
                    f"--metrics-port is {self.metrics_port}, which is in use for everything else"
                )
        if self.stores is not None:
            self._check_number("--stores", self.stores, 1, STORES_MAX)
            if self.store_urls:
                raise ConfigError("--stores and --store cannot be combined")
        self._check_number("connections_max", self.connections_max, 1, 1_000_000)
        if self.handshake_timeout_s <= 0:
            raise ConfigError(f"handshake_timeout_s is {self.handshake_timeout_s}; it must be more than 0")
        if not STALL_AFTER_LEAST_S <= self.stall_after_s <= STALL_AFTER_MOST_S:
            raise ConfigError(
                f"--stall-after is {self.stall_after_s:g}; allowed is {STALL_AFTER_LEAST_S:g} to "
                f"{STALL_AFTER_MOST_S:g} seconds"
            )
        # Refused here, before anything is opened.
        memory_limit(self.memory)
        for count in (self.premium_partitions, *self.namespace_premium_partitions.values()):
            if count is not None and count not in PREMIUM_PARTITIONS:
                raise ConfigError(f"--premium-messaging-partitions is {count}; allowed are 1, 2, 4")
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"--log-level is '{self.log_level}'; allowed are {', '.join(LOG_LEVELS)}")
        if self.log_format not in LOG_FORMATS:
            raise ConfigError(f"--log-format is '{self.log_format}'; allowed are {', '.join(LOG_FORMATS)}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key go together: one was given without the other")
        if (self.jwt_issuer is None) != (self.jwt_keys is None):
            raise ConfigError("--jwt-issuer and --jwt-keys go together: one was given without the other")
        if self.jwt_issuer is None and (self.jwt_audiences or self.jwt_roles):
            raise ConfigError("--jwt-audience and --jwt-role need --jwt-issuer")
        if self.arm_any_token and not (self.development and is_loopback(self.host)):
            raise ConfigError(
                "--arm-any-token lets every program on this machine manage all namespaces: it needs "
                "--development, and a --host that other machines cannot reach"
            )
        if self.sas_key is not None:
            if not self.sas_key.strip():
                raise ConfigError(f"{SAS_KEY_VARIABLE} is set but empty; unset it, or give it a key")
            refuse_exposed_keys(self.host, [self.sas_key])

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where to listen, the main address first."""
        ports = [self.port]
        # Port 0 twice is two free ports; any other port twice is one.
        if self.admin_port is not None and (self.admin_port == 0 or self.admin_port != self.port):
            ports.append(self.admin_port)
        return [(self.host, port) for port in ports]

    @staticmethod
    def _check_number(name: str, value: int, least: int, most: int) -> None:
        if not least <= value <= most:
            raise ConfigError(f"{name} is {value}; allowed is {least} to {most}")


def sas_key_from(environment: Mapping[str, str]) -> str | None:
    """The root key that the operator has set: from the environment, as arguments show in `ps`."""
    return environment.get(SAS_KEY_VARIABLE)


def refuse_exposed_keys(host: str, keys: Iterable[str]) -> None:
    """Refuse a public key if other machines can reach the server."""
    if not is_loopback(host) and WELL_KNOWN_KEY in keys:
        raise ConfigError(
            f"refusing to listen on '{host}' with the well-known key {WELL_KNOWN_KEY}: anybody could log in. "
            f"Set another key in {SAS_KEY_VARIABLE} or Config.json, or listen on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. A name other than localhost does not count."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
