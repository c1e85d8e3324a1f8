"""`bendybus serve`: from arguments to `Settings` to a running server."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import click

from bendybus.domain.entities import PREMIUM_PARTITIONS, Tier
from bendybus.errors import ConfigError, SetupError, StoreUnavailable
from bendybus.server.memory_limit import MEMORY_SHARE_PERCENT
from bendybus.server.process import run
from bendybus.server.settings import WELL_KNOWN_KEY, Settings, sas_key_from
from bendybus.server.supervisor import supervise

__all__ = ["serve"]

# Each is a process with its own memory, and talks to all others.
BROKERS_MAX: Final = 64

# What shells and init systems take for "called wrongly".
EXIT_SETUP: Final = 2

_SWITCH: Final = {"true": True, "false": False}
_COUNTS: Final = {str(count): count for count in PREMIUM_PARTITIONS}
_FILE: Final = click.Path(path_type=Path)

T = TypeVar("T")


class _Assignment(click.ParamType[str]):
    """Text. In the environment, semicolons separate assignments, because names of roles have spaces."""

    name = "assignment"
    envvar_list_splitter: ClassVar[str] = ";"


@click.command
@click.option(
    "--data",
    type=_FILE,
    metavar="DIR",
    default=Path(".data"),
    show_default=True,
    help="Folder for all durable data.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=5672, show_default=True, help="Port for all protocols; 0 picks a free one.")
@click.option(
    "--admin-port",
    default=5300,
    show_default=True,
    help="A second port for all protocols; 0 picks a free one.",
)
@click.option(
    "--metrics-port",
    type=int,
    help="A port for only /metrics and /health, without a token; 0 picks a free one.",
)
@click.option(
    "--brokers",
    metavar="N|auto",
    default="1",
    show_default=True,
    help="Number of broker processes; auto: one per core.",
)
@click.option(
    "--cluster",
    metavar="URL",
    envvar="BENDYBUS_CLUSTER",
    help="Join the cluster whose catalog is in this database, postgresql://...; needs --store.",
)
@click.option(
    "--broker",
    metavar="NAME",
    envvar="BENDYBUS_BROKER",
    show_default="the machine's name",
    help="This broker's name in its cluster.",
)
@click.option(
    "--cluster-address",
    metavar="HOST:PORT",
    envvar="BENDYBUS_CLUSTER_ADDRESS",
    show_default="127.0.0.1:0",
    help="The address at which the other brokers reach this one; port 0 picks a free one.",
)
@click.option(
    "--stores",
    type=int,
    help="Number of messaging stores to spread partitions over.",
    show_default="those there are, or 2",
)
@click.option(
    "--store",
    multiple=True,
    metavar="URL",
    help="A messaging store by URL, sqlite:///PATH or postgresql://...; may be repeated.",
)
@click.option(
    "--allow-store",
    multiple=True,
    metavar="FOLDER|URL",
    envvar="BENDYBUS_ALLOW_STORE",
    help="A folder or URL from which 'bendybus store attach' may attach stores; may be repeated.",
)
@click.option(
    "--tier",
    multiple=True,
    metavar="[NAME=]TIER",
    envvar="BENDYBUS_TIER",
    show_default="as it is, standard if new",
    help="basic, standard or premium, for all namespaces or the one called NAME; may be repeated.",
)
@click.option(
    "--premium-messaging-partitions",
    multiple=True,
    metavar="[NAME=]1|2|4",
    envvar="BENDYBUS_PREMIUM_MESSAGING_PARTITIONS",
    show_default="as they are, 2 if new",
    help="Partitions of each entity in the premium tier; may be repeated.",
)
@click.option(
    "--disable-local-auth",
    multiple=True,
    metavar="[NAME=]true|false",
    envvar="BENDYBUS_DISABLE_LOCAL_AUTH",
    show_default="as it is, false if new",
    help="Refuse keys and SAS tokens: clients need tokens of --jwt-issuer; may be repeated.",
)
@click.option("--config", type=_FILE, metavar="FILE", help="The official emulator's Config.json.")
@click.option("--namespace", multiple=True, metavar="NAME", help="One more namespace; may be repeated.")
@click.option("--emulator", is_flag=True, help="Use the official emulator's key, SAS_KEY_VALUE.")
@click.option("--tls-cert", type=_FILE, metavar="FILE", help="TLS certificate chain, PEM.")
@click.option("--tls-key", type=_FILE, metavar="FILE", help="The certificate's key, PEM.")
@click.option("--require-tls", is_flag=True, help="Refuse connections without TLS, except for /health.")
@click.option(
    "--jwt-issuer",
    envvar="BENDYBUS_JWT_ISSUER",
    help="Accept JSON Web Tokens of this issuer (Entra ID or another).",
)
@click.option(
    "--jwt-audience",
    multiple=True,
    envvar="BENDYBUS_JWT_AUDIENCE",
    help="The audience that tokens must name; may be repeated.",
    show_default="Azure Service Bus",
)
@click.option(
    "--jwt-keys",
    envvar="BENDYBUS_JWT_KEYS",
    help="The issuer's public keys (JWKS): a file or an https URL.",
)
@click.option(
    "--jwt-role",
    multiple=True,
    type=_Assignment(),
    metavar="WHO=WHAT[@SCOPE]",
    envvar="BENDYBUS_JWT_ROLE",
    help="What a role, oid:ID, appid:ID or group:ID may do, rights or one of Azure's roles; may be repeated.",
)
@click.option(
    "--stall-after",
    default=2.0,
    show_default=True,
    help="Seconds after which a store that does not answer counts as away.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    envvar="BENDYBUS_MEMORY",
    show_default=f"{MEMORY_SHARE_PERCENT}%",
    help="Memory limit for all connections together, such as 2GB, 512MB or 25%.",
)
@click.option("--no-portal", is_flag=True, help="Do not serve the portal at /portal.")
@click.option("--development", is_flag=True, help="For tests: allow 'bendybus fault' and POST /$reset.")
@click.option(
    "--arm-any-token",
    is_flag=True,
    help="For tests: Azure's management tools may use any token, on this machine. Needs --development.",
)
@click.option(
    "--telemetry",
    is_flag=True,
    envvar="BENDYBUS_TELEMETRY",
    help="Export traces, metrics and logs over OTLP, as OTEL_ variables say; needs bendybus[otel].",
)
@click.option("--log-level", default="info", show_default=True, help="debug, info, warning or error.")
@click.option("--log-format", default="text", show_default=True, help="text, or json: one object per line.")
@click.option(
    "--audit-log",
    type=_FILE,
    metavar="FILE",
    help="Write audit events to this file, as JSON lines, and not to the log.",
)
def serve(
    data: Path,
    host: str,
    port: int,
    admin_port: int,
    metrics_port: int | None,
    brokers: str,
    stores: int | None,
    store: tuple[str, ...],
    allow_store: tuple[str, ...],
    tier: tuple[str, ...],
    premium_messaging_partitions: tuple[str, ...],
    disable_local_auth: tuple[str, ...],
    config: Path | None,
    namespace: tuple[str, ...],
    emulator: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    require_tls: bool,
    jwt_issuer: str | None,
    jwt_audience: tuple[str, ...],
    jwt_keys: str | None,
    jwt_role: tuple[str, ...],
    stall_after: float,
    memory: str | None,
    no_portal: bool,
    development: bool,
    arm_any_token: bool,
    telemetry: bool,
    log_level: str,
    log_format: str,
    audit_log: Path | None,
    **in_cluster: str | None,
) -> None:
    """Run the broker until SIGTERM or Ctrl+C.

    The root key is in the variable BENDYBUS_SAS_KEY. Without it, a key is made and kept in the data folder.
    """
    try:
        settings = Settings(
            data=data,
            host=host,
            port=port,
            admin_port=admin_port,
            metrics_port=metrics_port,
            stores=stores,
            store_urls=store,
            allowed_stores=allow_store,
            **_for_namespaces(tier, premium_messaging_partitions, disable_local_auth),
            config=config,
            namespaces=namespace,
            sas_key=sas_key_from(os.environ) or (WELL_KNOWN_KEY if emulator else None),
            tls_cert=tls_cert,
            tls_key=tls_key,
            require_tls=require_tls,
            jwt_issuer=jwt_issuer,
            jwt_audiences=jwt_audience,
            jwt_keys=jwt_keys,
            jwt_roles=jwt_role,
            portal=not no_portal,
            development=development,
            arm_any_token=arm_any_token,
            stall_after_s=stall_after,
            memory=memory,
            telemetry=telemetry,
            log_level=log_level,
            log_format=log_format,
            audit_log=audit_log,
        )
        _run(_in_cluster(settings, **in_cluster), _broker_count(brokers))
    except (SetupError, StoreUnavailable) as error:
        click.echo(f"bendybus: {error}", err=True)
        raise click.exceptions.Exit(EXIT_SETUP) from None


def _for_namespaces(
    tier: Sequence[str], premium_messaging_partitions: Sequence[str], disable_local_auth: Sequence[str]
) -> dict[str, Any]:
    """The settings that may differ by namespace."""
    tiers = _by_namespace("--tier", tier, {str(each): each for each in Tier})
    partitions = _by_namespace("--premium-messaging-partitions", premium_messaging_partitions, _COUNTS)
    without_keys = _by_namespace("--disable-local-auth", disable_local_auth, _SWITCH)
    return {
        "tier": tiers.pop("", None),
        "namespace_tiers": tiers,
        "premium_partitions": partitions.pop("", None),
        "namespace_premium_partitions": partitions,
        "disable_local_auth": without_keys.pop("", None),
        "namespace_disable_local_auth": without_keys,
    }


def _in_cluster(
    settings: Settings, cluster: str | None, broker: str | None, cluster_address: str | None
) -> Settings:
    """The settings with what makes the server a broker of a cluster."""
    if cluster is not None:
        name, address = broker or socket.gethostname(), cluster_address or settings.cluster_address
        return replace(settings, cluster=cluster, broker_name=name, cluster_address=address)
    if broker is not None or cluster_address is not None:
        raise ConfigError("--broker and --cluster-address need --cluster")
    return settings


def _run(settings: Settings, brokers: int) -> None:
    if brokers == 1:
        run(settings)
    elif settings.cluster is not None:
        raise ConfigError(
            "--brokers and --cluster cannot be combined: start each broker of a cluster on its own"
        )
    elif code := supervise(settings, brokers):
        raise click.exceptions.Exit(code)


def _broker_count(given: str) -> int:
    if given == "auto":
        return max(1, min(len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1, BROKERS_MAX))
    if not given.isascii() or not given.isdigit() or not 1 <= int(given[:9]) <= BROKERS_MAX:
        raise ConfigError(f"--brokers is '{given}'; allowed are 1 to {BROKERS_MAX}, and auto")
    return int(given)


def _by_namespace(option: str, given: Sequence[str], allowed: Mapping[str, T]) -> dict[str, T]:
    """The values of `[NAME=]VALUE`, by name in lower case; what is for all namespaces is under ''."""
    found: dict[str, T] = {}
    for each in given:
        name, _, text = each.rpartition("=")
        value = allowed.get(text.lower())
        if value is None:
            raise ConfigError(f"{option} is '{each}'; allowed are {', '.join(allowed)}")
        if name.lower() in found:
            raise ConfigError(f"{option} is given twice for {name or 'all namespaces'}")
        found[name.lower()] = value
    return found
