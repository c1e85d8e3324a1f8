"""`bendybus cert`: the certificate for TLS, and how to make each SDK trust it.

The certificate is the server's own (server/tls.py): made here if there is none that fits,
so that it can be handed out before the first start; a later `bendybus serve` uses it.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import click

from bendybus.cli.command import output_option, told_errors
from bendybus.cli.options import data_option
from bendybus.cli.output import OutputFormat, note, show_one
from bendybus.errors import ConfigError
from bendybus.server.tls import TLS_FOLDER, certificate_in

__all__ = ["TRUST", "cert"]

# SDK -> what its user does; {file} is the certificate's path, {text} the same as a literal of Python.
TRUST: Final = {
    "Python": (
        "ServiceBusClient.from_connection_string(..., connection_verify={text})",
        "ServiceBusAdministrationClient: the same, or export REQUESTS_CA_BUNDLE={file}",
    ),
    "JavaScript": ("export NODE_EXTRA_CA_CERTS={file}",),
    "Java": (
        "keytool -importcert -noprompt -alias bendybus -file {file}"
        " -keystore bendybus.p12 -storetype PKCS12 -storepass changeit",
        "java -Djavax.net.ssl.trustStore=bendybus.p12 -Djavax.net.ssl.trustStorePassword=changeit ...",
    ),
    "Go": ("export SSL_CERT_FILE={file}   (Linux; elsewhere the system's store, as for .NET)",),
    ".NET": (
        "export SSL_CERT_FILE={file}   (Linux)",
        "security add-trusted-cert -k ~/Library/Keychains/login.keychain-db {file}   (macOS)",
        "certutil -user -addstore Root {file}   (Windows)",
    ),
    "bendybus, curl": ("export SSL_CERT_FILE={file}",),
}

# What a certificate can name: hosts, wildcards, addresses of either kind.
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9*_.:-]{1,253}")


@click.command
@data_option("Data folder of the server that will use it.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to put it into instead, for --tls-cert and --tls-key.",
)
@click.option("--name", multiple=True, metavar="HOST", help="One more host name or address; may be repeated.")
@output_option
def cert(data: Path, out: Path | None, name: tuple[str, ...], output: OutputFormat) -> None:
    """Create the TLS certificate and show how to trust it.

    A suitable certificate that already exists is kept.
    """
    with told_errors():
        _cert(data, out, list(name), output)


def _cert(data: Path, out: Path | None, names: list[str], output: OutputFormat) -> None:
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise ConfigError(f"--name is '{name}'; it must be a host name or an address")
    certificate, made = _certificate(data, out, names)
    key = certificate.with_suffix(".key")
    if made:
        note("The certificate was made now: a server that is running uses it from its next start.")
    shown = {"file": shlex.quote(str(certificate)), "text": repr(str(certificate))}
    trust = {sdk: [line.format(**shown) for line in lines] for sdk, lines in TRUST.items()}
    if output is OutputFormat.JSON:
        show_one({"certificate": str(certificate), "key": str(key), "trust": trust}, output)
        return
    click.echo(f"certificate  {certificate}\nkey          {key}   (for the server alone)")
    if out is not None:
        click.echo(f"\nStart the server with --tls-cert {certificate} --tls-key {key}")
    for sdk, lines in trust.items():
        click.echo(f"\n{sdk}")
        for line in lines:
            click.echo(f"  {line}")


def _certificate(data: Path, out: Path | None, names: list[str]) -> tuple[Path, bool]:
    """The certificate's file, and whether it is new."""
    try:
        if out is None:
            # With the permissions that the server would set: other users must not read it.
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = data / TLS_FOLDER if out is None else out
        before = {file: file.stat().st_mtime_ns for file in folder.glob("*.crt")}
        certificate, _ = certificate_in(folder, names)
        made = before.get(certificate) != certificate.stat().st_mtime_ns
    except OSError as error:
        raise ConfigError(f"the certificate cannot be made in '{out or data}': {error.strerror}") from error
    return certificate.resolve(), made
