"""`bendybus serve`: from arguments to `Settings` to a running server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bendybus.errors import ConfigError, SetupError, StoreUnavailable

__all__ = ["serve"]

# What shells and init systems take for "called wrongly".
EXIT_SETUP = 2


def serve(
    data: Annotated[Path, typer.Option(help="Folder that holds everything durable.")] = Path(".data"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for everything; 0 picks a free one.")] = 5672,
    admin_port: Annotated[int, typer.Option(help="Another port for everything; 0 picks a free one.")] = 5300,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="A port for /metrics and /health alone, without a token; 0 picks a free one."),
    ] = None,
    stores: Annotated[
        int | None,
        typer.Option(
            help="Messaging stores to spread partitions over.", show_default="those there are, or 2"
        ),
    ] = None,
    store: Annotated[
        list[str] | None,
        typer.Option(help="A messaging store by URL, sqlite:///PATH or postgresql://...; may be repeated."),
    ] = None,
    allow_store: Annotated[
        list[str] | None,
        typer.Option(
            help="A folder or a URL of which 'bendybus store attach' may attach stores; may be repeated.",
            envvar="BENDYBUS_ALLOW_STORE",
        ),
    ] = None,
    tier: Annotated[str, typer.Option(help="basic, standard or premium.")] = "standard",
    config: Annotated[Path | None, typer.Option(help="The official emulator's Config.json.")] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="A namespace to have besides; may be repeated.")
    ] = None,
    emulator: Annotated[
        bool, typer.Option("--emulator", help="Take the official emulator's key, SAS_KEY_VALUE.")
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="TLS certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key, PEM.")] = None,
    require_tls: Annotated[
        bool, typer.Option("--require-tls", help="Refuse connections without TLS, except for /health.")
    ] = False,
    jwt_issuer: Annotated[
        str | None, typer.Option(help="Take JSON Web Tokens of this issuer (Entra ID or another).")
    ] = None,
    jwt_audience: Annotated[
        list[str] | None,
        typer.Option(help="Whom they must be for; may be repeated.", show_default="Azure Service Bus"),
    ] = None,
    jwt_keys: Annotated[
        str | None, typer.Option(help="The issuer's public keys (JWKS): a file or an https URL.")
    ] = None,
    jwt_role: Annotated[
        list[str] | None,
        typer.Option(help="What a role is worth, NAME=RIGHTS[@ENTITY]; may be repeated."),
    ] = None,
    stall_after: Annotated[
        float, typer.Option(help="Seconds after which a store that does not answer counts as away.")
    ] = 2.0,
    development: Annotated[
        bool, typer.Option("--development", help="For tests: allow 'bendybus fault' and POST /$reset.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the broker until SIGTERM or Ctrl+C.

    The root key comes from the environment variable BENDYBUS_SAS_KEY; without it, one
    is made and kept in the data folder.
    """
    from bendybus.domain.entities import Tier  # noqa: PLC0415 - see main.py
    from bendybus.server.settings import WELL_KNOWN_KEY, Settings, sas_key_from  # noqa: PLC0415

    try:
        if tier not in list(Tier):
            raise ConfigError(f"--tier is '{tier}'; allowed are {', '.join(Tier)}")
        settings = Settings(
            data=data,
            host=host,
            port=port,
            admin_port=admin_port,
            metrics_port=metrics_port,
            stores=stores,
            store_urls=tuple(store or ()),
            allowed_stores=tuple(allow_store or ()),
            tier=Tier(tier),
            config=config,
            namespaces=tuple(namespace or ()),
            sas_key=sas_key_from(os.environ) or (WELL_KNOWN_KEY if emulator else None),
            tls_cert=tls_cert,
            tls_key=tls_key,
            require_tls=require_tls,
            jwt_issuer=jwt_issuer,
            jwt_audiences=tuple(jwt_audience or ()),
            jwt_keys=jwt_keys,
            jwt_roles=tuple(jwt_role or ()),
            development=development,
            stall_after_s=stall_after,
            log_level=log_level,
        )
        # Imported once the settings are known to be good: an error in them is told at once.
        from bendybus.server.app import run  # noqa: PLC0415

        run(settings)
    except (SetupError, StoreUnavailable) as error:
        typer.echo(f"bendybus: {error}", err=True)
        raise typer.Exit(EXIT_SETUP) from None
