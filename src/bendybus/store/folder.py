"""The data folder: its lock, its files and its secrets.

    bendybus.lock   held for the life of the process; names its holder
    folder.json     the format's version and the number of messaging stores
    root.key        the namespace's root key, readable only by the owner; the second one is
                    root-secondary.key; each is made once, and replaced on request
    stores.json     the stores that were attached later, by URL, readable only by the owner; and those of
                    the folder's own stores that were retired
    catalog.db      what exists (sqlite/catalog.py)
    store-N.db      the messaging stores (sqlite/store.py), each with its log and its journal
                    (store-N.db-commits-0 and -1)
    *-witness       for each of these files, which commit was acknowledged last (sqlite/witness.py)
    namespaces.json if there are several: their names, first the one that the files above belong to; and
                    those that are being deleted
    namespaces/     a folder like this one for each of the others
    server.json     where the server listens, while it runs (server/announcement.py)

This module handles only names and small files. Databases are opened by their
own modules.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bendybus.errors import ConfigError, DataFolderInUse, SchemaTooNew, StoreCorrupted

__all__ = ["ROOT_KEY_FILE", "DataFolder", "StoreList", "make_key"]

FORMAT_VERSION: Final = 1
KEY_BYTES: Final = 32
ROOT_KEY_FILE: Final = "root.key"


@dataclass(frozen=True, slots=True)
class StoreList:
    """How the stores of a data folder differ from those on the command line."""

    attached: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name -> URL, which may contain a password."""
    retired: frozenset[str] = frozenset()
    """Names of the folder's own stores that must not be used again."""


class DataFolder:
    """Created and locked by `open`. The lock ends with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: int | None = None

    @property
    def path(self) -> Path:
        return self._path

    @property
    def catalog_path(self) -> Path:
        return self._path / "catalog.db"

    @property
    def timelines_path(self) -> Path:
        """Which PostgreSQL servers are old primaries (store/postgres/timelines.py)."""
        return self._path / "timelines.json"

    @property
    def runs_path(self) -> Path:
        """Runs of pipelines, as they have reported themselves."""
        return self._path / "pipeline-runs"

    def open(self) -> None:
        """`DataFolderInUse` if another process has it, `SchemaTooNew` if a newer Bendybus wrote it."""
        assert self._lock is None, f"{self._path} is open already"
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path / "bendybus.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"the data folder {self._path} cannot be used: {error.strerror}") from error
        try:
            self._take(lock)
            self._stores_recorded()
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def _take(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise DataFolderInUse(
                f"the data folder {self._path} is in use by another process (pid {holder})"
            ) from None
        # Only read by processes that are refused. A full disk has no room for it.
        with contextlib.suppress(OSError):
            os.truncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode("ascii"), 0)

    @property
    def lock(self) -> int:
        """The descriptor that holds the lock. A process that inherits it holds it too."""
        assert self._lock is not None, f"{self._path} is not open"
        return self._lock

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- namespaces -----------------------------------------------------------

    def namespaces(self) -> list[str]:
        """The names of all namespaces, this folder's own first; empty while there is one without a name."""
        file = self._path / "namespaces.json"
        try:
            content = json.loads(file.read_bytes())
            version, names = int(content["format"]), [str(name) for name in content["names"]]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorrupted(f"{file} is damaged: {error!r}") from error
        _refuse_newer(file, version)
        for name in names[1:]:
            if not self.of_namespace(name).path.is_dir():
                raise StoreCorrupted(f"the folder {self.of_namespace(name).path} of a namespace is missing")
        return names

    def record_namespaces(self, names: Sequence[str], removing: Sequence[str] = ()) -> None:
        """Record the namespaces, once their folders exist. The first stays the first.

        `removing` are deleted: `finish_removing` removes their folders, at the next start if not before.
        """
        if removing or list(names) != self.namespaces():
            self._write_namespaces(names, removing)

    def _write_namespaces(self, names: Sequence[str], removing: Sequence[str]) -> None:
        content = {"format": FORMAT_VERSION, "names": list(names), "removing": list(removing)}
        write_whole(self._path / "namespaces.json", json.dumps(content).encode("utf-8"))

    def finish_removing(self) -> None:
        """Remove the folders of namespaces that were deleted."""
        names = self.namespaces()
        if not names:
            return
        removing = json.loads((self._path / "namespaces.json").read_bytes()).get("removing") or ()
        for name in removing:
            self.of_namespace(str(name)).remove()
        if removing:
            self._write_namespaces(names, ())

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self._path, ignore_errors=True)

    def of_namespace(self, name: str) -> DataFolder:
        """The folder of a namespace other than the first. It has to be opened separately."""
        return DataFolder(self._path / "namespaces" / name.lower())

    # -- messaging stores -----------------------------------------------------

    def store_paths(self, asked: int | None = None, default: int = 1) -> list[Path]:
        """The files of as many messaging stores as asked for; else of the existing ones, or `default`.

        There may be more than at the last start, but never fewer: partitions are in them.
        """
        recorded = self._stores_recorded()
        count = (recorded or default) if asked is None else asked
        if count < max(recorded, 1):
            raise ConfigError(
                f"the data folder {self._path} has {recorded} messaging stores, and {count} are asked for; "
                f"stores can be added but not taken away"
            )
        return [self._path / f"store-{number}.db" for number in range(count)]

    @property
    def own_stores(self) -> int:
        """How many messaging stores of its own the folder has, including retired ones."""
        return self._stores_recorded()

    def store_list(self) -> StoreList:
        """The stores that were attached and retired while the server ran."""
        file = self._path / "stores.json"
        try:
            content = json.loads(file.read_bytes())
            attached = {str(name): str(url) for name, url in content["attached"].items()}
            return StoreList(attached, frozenset(map(str, content["retired"])))
        except FileNotFoundError:
            return StoreList()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Without the text of the cause: it may quote a URL, and with it a password.
            raise StoreCorrupted(f"{file} is damaged: {type(error).__name__}") from None

    def keep_store_list(self, stores: StoreList) -> None:
        content = {"attached": dict(stores.attached), "retired": sorted(stores.retired)}
        write_whole(self._path / "stores.json", json.dumps(content).encode())

    def record_stores(self, count: int) -> None:
        """Record this number of stores, once they have been opened and so exist."""
        if count > self._stores_recorded():
            text = json.dumps({"format": FORMAT_VERSION, "stores": count})
            write_whole(self._path / "folder.json", text.encode("ascii"))

    def _stores_recorded(self) -> int:
        file = self._path / "folder.json"
        try:
            content = json.loads(file.read_bytes())
            version, stores = int(content["format"]), int(content["stores"])
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorrupted(f"{file} is damaged: {error!r}") from error
        _refuse_newer(file, version)
        return stores

    # -- secrets --------------------------------------------------------------

    def root_key(self, which: Literal["primary", "secondary"] = "primary") -> str:
        """One of the namespace's root SAS keys, in base64. Created at the first call and kept."""
        file = self._root_key_file(which)
        try:
            key = file.read_text("ascii").strip()
        except FileNotFoundError:
            key = make_key()
            write_whole(file, f"{key}\n".encode("ascii"))
        if not key:
            raise StoreCorrupted(f"{file} is empty")
        return key

    def keep_root_key(self, which: Literal["primary", "secondary"], key: str) -> None:
        """Replace a key. The next `root_key` returns the new one."""
        write_whole(self._root_key_file(which), f"{key}\n".encode("ascii"))

    def _root_key_file(self, which: Literal["primary", "secondary"]) -> Path:
        return self._path / ("root.key" if which == "primary" else "root-secondary.key")


def make_key() -> str:
    """A new SAS key, in base64."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode("ascii")


def _refuse_newer(file: Path, version: int) -> None:
    if version > FORMAT_VERSION:
        raise SchemaTooNew(f"{file} has format {version}; this Bendybus knows formats up to {FORMAT_VERSION}")


def write_whole(path: Path, content: bytes) -> None:
    """Write the whole file or nothing. Only its owner can read it."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, content)
        os.fsync(file)
    except OSError:
        draft.unlink()
        raise
    finally:
        os.close(file)
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
