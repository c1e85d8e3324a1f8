"""`bendybus portal`: the portal alone, for a server elsewhere: another Bendybus, or an Azure namespace.

A server shows its own portal at `/portal` without this command.
"""

from __future__ import annotations

import ipaddress
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from bendybus.cli.command import Command, connection_string_option, told_errors
from bendybus.cli.options import running_data_option
from bendybus.cli.output import OutputFormat, note
from bendybus.errors import ConfigError

__all__ = ["portal"]

PORT_DEFAULT: Final = 8321


@click.command
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT_DEFAULT,
    show_default=True,
    help="The port to listen on.",
)
@connection_string_option
@running_data_option
def portal(host: str, port: int, connection_string: str | None, data: Path | None) -> None:
    """Run the portal for a server, until SIGTERM or Ctrl+C."""
    with told_errors():
        if find_spec("nicegui") is None:
            raise ConfigError("the portal is not installed: pip install 'bendybus[portal]'")
        from bendybus_portal.serving import PortalSettings, run_alone  # noqa: PLC0415 - only where installed

        command = Command(connection_string, data, OutputFormat.TABLE)
        namespace = command.namespace()
        # The code signs in with the key of the connection string, so only this machine may see it.
        code = secrets.token_urlsafe(24) if namespace.key and _is_loopback(host) else ""
        settings = PortalSettings(namespace.text, command.certificate(), code)

        def tell(bound: int) -> None:
            shown = f"[{host}]" if ":" in host else host
            click.echo(f"portal http://{shown}:{bound}/portal" + (f"/sign-in?code={code}" if code else ""))
            if not _is_loopback(host):
                note("Other machines can connect, and without TLS: put a proxy with TLS before the portal.")

        run_alone(settings, host, port, tell)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
