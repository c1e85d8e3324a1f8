"""The places where clients look for certificates: the system's store, Java's, and the bundle of a Python.

A certificate is added under a name that begins with `bendybus-`, and everything with such a name is removed
again. Node.js has no store of its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from bendybus.errors import ConfigError

__all__ = ["JavaStore", "PythonBundle", "SystemStore", "TrustStore", "find_bundle", "find_system_store"]

PREFIX: Final = "bendybus-"
# What every Java's store has, unless somebody has changed it.
JAVA_PASSWORD: Final = "changeit"

_BLOCK: Final = re.compile(r"# (bendybus-[0-9a-f]+) begins\n.*?# \1 ends\n", re.DOTALL)


class TrustStore(Protocol):
    """A store of certificates. `ConfigError` says why it cannot be changed."""

    reaches: str
    """The clients that use it."""

    def add(self, certificate: Path) -> None:
        """Does nothing if the certificate is there already."""

    def remove(self) -> int:
        """Remove all certificates of Bendybus. Returns how many there were."""


class PythonBundle:
    """The bundle of `certifi`, which the Azure SDK for Python trusts, in one environment.

    An update of `certifi` replaces it.
    """

    reaches = "the Azure SDK for Python in this environment"

    def __init__(self, bundle: Path) -> None:
        self._bundle = bundle

    def add(self, certificate: Path) -> None:
        name, text = _name_of(certificate), self._read()
        if f"# {name} begins\n" not in text:
            self._write(f"{text}# {name} begins\n{certificate.read_text('ascii').strip()}\n# {name} ends\n")

    def remove(self) -> int:
        text, count = _BLOCK.subn("", self._read())
        if count:
            self._write(text)
        return count

    def _read(self) -> str:
        try:
            return self._bundle.read_text("utf-8")
        except OSError as error:
            raise ConfigError(f"{self._bundle} cannot be read: {error.strerror}") from error

    def _write(self, text: str) -> None:
        """In one step: other processes read it at any time."""
        draft = self._bundle.with_name(f"{self._bundle.name}.{os.getpid()}")
        try:
            draft.write_text(text, "utf-8")
            shutil.copymode(self._bundle, draft)
            draft.replace(self._bundle)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise ConfigError(f"{self._bundle} cannot be written: {error.strerror}") from error


class SystemStore:
    """The store of a Linux distribution: a folder for own certificates, and a command that reads it."""

    reaches = "Go, .NET, curl, and Python's own ssl"

    def __init__(self, folder: Path, update: Sequence[str], update_removed: Sequence[str]) -> None:
        """The commands to call after certificates were added to the folder, and after some were removed."""
        self._folder = folder
        self._update = update
        self._update_removed = update_removed

    def add(self, certificate: Path) -> None:
        try:
            shutil.copyfile(certificate, self._folder / f"{_name_of(certificate)}.crt")
        except OSError as error:
            raise ConfigError(_refused(self._folder, error)) from error
        _run(self._update)

    def remove(self) -> int:
        files = list(self._folder.glob(f"{PREFIX}*.crt"))
        try:
            for file in files:
                file.unlink()
        except OSError as error:
            raise ConfigError(_refused(self._folder, error)) from error
        if files:
            _run(self._update_removed)
        return len(files)


class JavaStore:
    """The store of the Java that `keytool` belongs to."""

    reaches = "Java"

    def __init__(self, keytool: str, store: Sequence[str] = ("-cacerts",)) -> None:
        self._keytool = keytool
        self._store = (*store, "-storepass", JAVA_PASSWORD)

    def add(self, certificate: Path) -> None:
        name = _name_of(certificate)
        if name not in self._names():
            _run(
                [
                    self._keytool,
                    "-importcert",
                    "-noprompt",
                    "-alias",
                    name,
                    "-file",
                    str(certificate),
                    *self._store,
                ]
            )

    def remove(self) -> int:
        names = self._names()
        for name in names:
            _run([self._keytool, "-delete", "-alias", name, *self._store])
        return len(names)

    def _names(self) -> list[str]:
        listed = _run([self._keytool, "-list", *self._store])
        return re.findall(rf"^({PREFIX}[0-9a-f]+),", listed, re.MULTILINE)


def find_system_store() -> SystemStore | None:
    """Debian's or Fedora's, and of those that descend from them."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    for folder, update, after_removal in (
        ("/usr/local/share/ca-certificates", "update-ca-certificates", ["--fresh"]),
        ("/etc/pki/ca-trust/source/anchors", "update-ca-trust", []),
    ):
        command = shutil.which(update, path=path)
        if command is not None and Path(folder).is_dir():
            return SystemStore(Path(folder), [command], [command, *after_removal])
    return None


def find_bundle(python: str) -> PythonBundle | None:
    """The bundle of the environment that this Python belongs to; None without `certifi`."""
    with tempfile.TemporaryDirectory() as folder:
        # In an empty folder: modules of the current one are not meant.
        command = [python, "-c", "import certifi; print(certifi.where())"]
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        except OSError as error:
            raise ConfigError(f"{python} cannot be run: {error.strerror}") from error
    return None if found.returncode else PythonBundle(Path(found.stdout.strip()))


def _name_of(certificate: Path) -> str:
    der = ssl.PEM_cert_to_DER_cert(certificate.read_text("ascii"))
    return PREFIX + hashlib.sha256(der).hexdigest()[:12]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ConfigError(f"{command[0]}: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout


def _refused(folder: Path, error: OSError) -> str:
    advice = ": call this command as root" if isinstance(error, PermissionError) else ""
    return f"{folder} cannot be changed: {error.strerror}{advice}"
