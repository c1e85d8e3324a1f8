"""What a backup is: a folder with a manifest that names every file in it, with its size and checksum.

    manifest.json              written last: a folder without one is not a backup
    tls/                       the certificate that the server made for itself
    namespaces/N/catalog.db    what exists in the namespace, the first one's in namespaces/0
    namespaces/N/root.key      its keys, root-secondary.key likewise; absent where the operator set them
    namespaces/N/stores/       NAME.db of SQLite, NAME.pgdump of PostgreSQL

Made by backup.py, read by restore.py.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bendybus.errors import ConfigError, SchemaTooNew, StoreCorrupted

__all__ = [
    "CATALOG_FILE",
    "KEY_FILES",
    "TLS_FILES",
    "Manifest",
    "NamespaceEntry",
    "StoreEntry",
    "read_manifest",
    "sync_folder",
    "sync_tree",
    "verify",
    "write_manifest",
]

FORMAT_VERSION: Final = 1
MANIFEST_FILE: Final = "manifest.json"
CATALOG_FILE: Final = "catalog.db"
KEY_FILES: Final = ("root.key", "root-secondary.key")
TLS_FILES: Final = ("tls/server.crt", "tls/server.key")


@dataclass(frozen=True, slots=True)
class StoreEntry:
    name: str
    kind: str
    file: str
    """The path of its copy, relative to the backup's folder."""


@dataclass(frozen=True, slots=True)
class NamespaceEntry:
    name: str
    folder: str
    own_stores: int
    """How many stores of its own the data folder has, including retired ones."""
    entities: int
    stores: tuple[StoreEntry, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    version: str
    """The version of the Bendybus that made it."""
    made_at: str
    named: bool
    """Whether the namespaces have names of their own. A single one needs none."""
    namespaces: tuple[NamespaceEntry, ...]


# -- writing ----------------------------------------------------------------------


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """List everything in the folder. To be called when the folder is complete."""
    content = {
        "format": FORMAT_VERSION,
        **asdict(manifest),
        "files": {name: _summary(folder / name) for name in _files(folder)},
    }
    (folder / MANIFEST_FILE).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def sync_tree(folder: Path) -> None:
    """Return once all files below, and their names, are on disk."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(path, name))
        sync_folder(Path(path))


def sync_folder(folder: Path) -> None:
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- reading ----------------------------------------------------------------------


def read_manifest(folder: Path) -> Manifest:
    """`ConfigError` if the folder is not a backup. `verify` checks its contents."""
    content = _content(folder)
    try:
        namespaces = tuple(
            NamespaceEntry(**{**entry, "stores": tuple(StoreEntry(**each) for each in entry["stores"])})
            for entry in content["namespaces"]
        )
        return Manifest(content["version"], content["made_at"], content["named"], namespaces)
    except (KeyError, TypeError) as error:
        raise StoreCorrupted(f"{folder / MANIFEST_FILE} is damaged: {error!r}") from error


def verify(folder: Path) -> None:
    """`StoreCorrupted` names the first file that is missing or has changed."""
    expected = _content(folder)["files"]
    for name, summary in expected.items():
        if not (folder / name).is_file():
            raise StoreCorrupted(f"the backup {folder} is incomplete: {name} is missing")
        if _summary(folder / name) != summary:
            raise StoreCorrupted(f"the backup {folder} is damaged: {name} has changed since it was made")
    if strange := sorted(set(_files(folder)) - set(expected)):
        raise StoreCorrupted(f"the backup {folder} holds {strange[0]}, which was not made with it")


def _content(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST_FILE
    try:
        content = json.loads(file.read_bytes())
        version = int(content["format"])
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{folder} is not a backup: it has no {MANIFEST_FILE}") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupted(f"{file} is damaged: {error!r}") from error
    if version > FORMAT_VERSION:
        raise SchemaTooNew(f"{file} has format {version}; this Bendybus knows formats up to {FORMAT_VERSION}")
    assert isinstance(content, dict)
    return content


def _files(folder: Path) -> Iterator[str]:
    """Everything except the manifest, as the manifest names it."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_dir() and name != MANIFEST_FILE:
            yield name


def _summary(file: Path) -> dict[str, object]:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}
