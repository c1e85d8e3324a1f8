"""`bendybus trust`: the development certificate, put where clients look for certificates, and taken back."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from bendybus.cli.command import EXIT_FAILED, output_option, told_errors
from bendybus.cli.options import running_data_option
from bendybus.cli.output import OutputFormat, note, show_one
from bendybus.cli.target import find_folder
from bendybus.cli.truststore import JavaStore, TrustStore, find_bundle, find_system_store
from bendybus.errors import ConfigError
from bendybus.server.tls import CERTIFICATE_FILE, TLS_FOLDER

__all__ = ["trust"]

STORES = ("system", "python", "java")


@click.command
@click.argument("stores", nargs=-1, type=click.Choice(STORES), metavar="[system|python|java]...")
@click.option("--remove", is_flag=True, help="Remove every certificate that this command has added.")
@click.option(
    "--python",
    metavar="FILE",
    default=sys.executable,
    show_default="the one that runs bendybus",
    help="The Python of the environment to change.",
)
@running_data_option
@output_option
def trust(
    stores: tuple[str, ...], remove: bool, python: str, data: Path | None, output: OutputFormat
) -> None:
    """Make clients on this machine trust the server's own certificate.

    Without arguments, the certificate is added to every trust store that is found. The system's and
    Java's usually need root.
    """
    with told_errors():
        certificate = (find_folder(data) / TLS_FOLDER / CERTIFICATE_FILE).resolve()
        if not remove and not certificate.exists():
            raise ConfigError(
                f"{certificate} is not there: 'bendybus cert' makes it, or name its server by --data"
            )
        results = dict(_change(stores or STORES, python, None if remove else certificate))
        refused = [f"{name}: {text}" for name, (done, text) in results.items() if not done]
        if output is OutputFormat.JSON:
            shown = {name: {"done": done, "text": text} for name, (done, text) in results.items()}
            show_one({"certificate": str(certificate), "stores": shown}, output)
        else:
            for name, (done, text) in results.items():
                if done:
                    click.echo(f"{name:8} {text}")
        for each in refused:
            note(each)
        if not remove:
            # Of its own it has none; newer ones use the system's if they are told to.
            note(f"Node.js has no store: export NODE_EXTRA_CA_CERTS={shlex.quote(str(certificate))}")
        if refused and (stores or len(refused) == len(results)):
            raise click.exceptions.Exit(EXIT_FAILED)


def _change(
    names: tuple[str, ...], python: str, certificate: Path | None
) -> Iterator[tuple[str, tuple[bool, str]]]:
    """Add the certificate, or remove those of Bendybus: for each store whether that worked, and a text."""
    for name in names:
        try:
            store = _find(name, python)
            if certificate is None:
                count = store.remove()
                yield name, (True, f"{count} certificates removed" if count else "nothing to remove")
            else:
                store.add(certificate)
                yield name, (True, f"trusted by {store.reaches}")
        except ConfigError as error:
            yield name, (False, str(error))


def _find(name: str, python: str) -> TrustStore:
    store: TrustStore | None
    if name == "system":
        store, missing = find_system_store(), "no store of Debian's or Fedora's kind is here"
    elif name == "python":
        store, missing = find_bundle(python), f"certifi is not installed for {python}"
    else:
        keytool = shutil.which("keytool")
        store, missing = JavaStore(keytool) if keytool else None, "keytool is not on the PATH"
    if store is None:
        raise ConfigError(missing)
    return store
