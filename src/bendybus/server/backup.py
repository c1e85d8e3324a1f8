"""Backups of a running server: all its namespaces, with keys and certificates, into one folder.

The catalog and all stores of each namespace are fixed at one moment (broker/cut.py) and then copied while
traffic continues. With several brokers, all of them stand still for that moment (standing_still.py). The
folder is written under another name and renamed once it is complete and on disk, so under its own name it is
whole or absent. Its contents: backup_format.py. HTTP routes: backup_routes.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, Protocol, TypeVar

from bendybus import audit
from bendybus.broker.broker import Broker
from bendybus.broker.cut import cut
from bendybus.broker.stores import AttachedStore
from bendybus.errors import ArgumentError, BrokerError, InvalidOperation, StoreUnavailable
from bendybus.server.backup_format import (
    CATALOG_FILE,
    KEY_FILES,
    TLS_FILES,
    Manifest,
    NamespaceEntry,
    StoreEntry,
    sync_folder,
    sync_tree,
    write_manifest,
)
from bendybus.store.folder import DataFolder
from bendybus.store.protocol import MessagingStore, StoreImage
from bendybus.store.sqlite.image import SqliteImage

__all__ = ["BackedUp", "Backups", "OtherBrokers"]

logger = logging.getLogger(__name__)

# How often to try again if the writers of the stores are not between two commits at the same time.
CUTS_MAX: Final = 20
# The server's shutdown does not wait longer for a disk that does not answer.
STOP_TIMEOUT_S: Final = 5.0

T = TypeVar("T")


class OtherBrokers(Protocol):
    """The brokers that share a namespace with the one that backs it up."""

    stores: Sequence[MessagingStore]
    """Theirs."""

    async def cut(self, images: Mapping[AttachedStore, Callable[[], None]], rest: Callable[[], None]) -> bool:
        """`cut` while no other broker writes. `rest` fixes the catalog and the images of other brokers."""


@dataclass(frozen=True, slots=True)
class BackedUp:
    """One namespace: its name, its broker, and where its files are."""

    name: str
    broker: Broker
    folder: DataFolder
    others: OtherBrokers | None = None
    """If the namespace has several brokers. This one makes all changes to its entities."""


@dataclass(slots=True)
class _Images:
    """A namespace at one moment, and what was small enough to be read at that moment."""

    catalog: StoreImage
    stores: dict[str, tuple[str, StoreImage]]
    """Name -> kind and image."""
    keys: dict[str, bytes]
    own_stores: int
    entities: int

    def close(self) -> None:
        self.catalog.close()
        for _, image in self.stores.values():
            image.close()


class Backups:
    """Makes backups, one at a time."""

    def __init__(self, data: Path, namespaces: Callable[[], Sequence[BackedUp]]) -> None:
        """`namespaces` returns those that the server has now."""
        self._data = data
        self._namespaces = namespaces
        self._making: asyncio.Task[None] | None = None
        self._stopping = False
        self._copied_bytes = 0
        self._last: dict[str, object] = {"state": "none"}

    @property
    def running(self) -> bool:
        return self._making is not None and not self._making.done()

    @property
    def progress(self) -> dict[str, object]:
        """The progress of the current backup, or the result of the last one."""
        return {**self._last, "bytes": self._copied_bytes} if self.running else self._last

    def begin(self, folder: Path) -> None:
        """Start a backup at this path. Returns at once."""
        if self.running:
            raise InvalidOperation(f"Another backup is being made, in {self._last['folder']}.")
        self._refuse_place(folder)
        self._copied_bytes = 0
        self._last = {"state": "running", "folder": str(folder)}
        audit.record("backup-begun", folder=str(folder))
        self._making = asyncio.create_task(self._make_and_tell(folder))

    async def stop(self) -> None:
        """Give up the current backup. Nothing remains of it unless its disk is stuck."""
        self._stopping = True
        if self._making is not None:
            await asyncio.wait([self._making], timeout=STOP_TIMEOUT_S)

    def _refuse_place(self, folder: Path) -> None:
        if not folder.is_absolute():
            raise ArgumentError("'folder' must be an absolute path.")
        if folder.resolve().is_relative_to(self._data.resolve()):
            raise ArgumentError(f"{folder} is inside the data folder: a backup must not be lost with it.")
        if not folder.parent.is_dir():
            raise ArgumentError(f"The folder {folder.parent} does not exist.")
        refuse_taken(folder)

    async def _make_and_tell(self, folder: Path) -> None:
        logger.info("starting a backup in %s", folder)
        try:
            await self._tell(folder)
        finally:
            event = "backup-completed" if self._last["state"] == "done" else "backup-failed"
            audit.record(event, folder=str(folder))

    async def _tell(self, folder: Path) -> None:
        try:
            made = await self._make(folder)
        except (BrokerError, OSError) as failure:
            why = failure.strerror if isinstance(failure, OSError) else None
            self._last = {"state": "failed", "folder": str(folder), "error": why or str(failure)}
            logger.error("no backup was made in %s: %s", folder, why or failure)
        except BaseException:
            self._last = {"state": "failed", "folder": str(folder), "error": "the server has a fault"}
            raise
        else:
            self._last = {"state": "done", "folder": str(folder), "bytes": self._copied_bytes, **made}
            logger.info("the backup in %s is complete: %d bytes", folder, self._copied_bytes)

    async def _make(self, folder: Path) -> dict[str, object]:
        draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
        try:
            made_at = datetime.now(UTC).isoformat(timespec="seconds")
            namespaces = self._namespaces()
            entries = [
                await self._back_up(namespace, draft, f"namespaces/{number}")
                for number, namespace in enumerate(namespaces)
            ]
            manifest = Manifest(version("bendybus"), made_at, len(namespaces) > 1, tuple(entries))
            await _in_own_thread(lambda: self._complete(draft, folder, manifest))
        except asyncio.CancelledError:
            # The server's shutdown does not wait for a disk that is stuck.
            raise
        except BaseException:
            await _in_own_thread(lambda: shutil.rmtree(draft, ignore_errors=True))
            raise
        return {
            "madeAt": made_at,
            "namespaces": len(entries),
            "entities": sum(entry.entities for entry in entries),
            "stores": sum(len(entry.stores) for entry in entries),
            "keys": all((folder / entry.folder / KEY_FILES[0]).exists() for entry in entries),
        }

    def _complete(self, draft: Path, folder: Path, manifest: Manifest) -> None:
        for name in TLS_FILES:
            source, target = self._data / name, draft / name
            if source.exists():
                target.parent.mkdir(mode=0o700, exist_ok=True)
                _write_secret(target, source.read_bytes())
        write_manifest(draft, manifest)
        sync_tree(draft)
        # If something of that name was created meanwhile, it is kept.
        refuse_taken(folder)
        draft.rename(folder)
        sync_folder(folder.parent)

    # -- one namespace ------------------------------------------------------------

    async def _back_up(self, namespace: BackedUp, draft: Path, where: str) -> NamespaceEntry:
        images = await self._fixed(namespace)
        try:
            return await _in_own_thread(lambda: self._write(namespace.name, images, draft, where))
        finally:
            _start_thread(images.close)

    async def _fixed(self, namespace: BackedUp) -> _Images:
        """Images of one moment. No entity or store is added or removed meanwhile."""
        broker = namespace.broker
        for _ in range(CUTS_MAX):
            self._refuse_stopping()
            async with broker.entities.changing:
                for store in broker.stores:
                    store.refuse_away()
                images = await _in_own_thread(lambda: _images(namespace))
                try:
                    if await _cut(namespace, images):
                        return images
                except BaseException:
                    _start_thread(images.close)
                    raise
            _start_thread(images.close)
        raise StoreUnavailable("The messaging stores are too slow to be backed up together. Try again later.")

    def _write(self, name: str, images: _Images, draft: Path, where: str) -> NamespaceEntry:
        folder = draft / where
        (folder / "stores").mkdir(mode=0o700, parents=True)
        for file, key in images.keys.items():
            _write_secret(folder / file, key)
        self._copy(images.catalog, folder / CATALOG_FILE)
        entries = []
        for store, (kind, image) in images.stores.items():
            file = f"stores/{store}{image.suffix}"
            self._copy(image, folder / file)
            # From now on its log can be emptied again.
            image.close()
            entries.append(StoreEntry(store, kind, f"{where}/{file}"))
        return NamespaceEntry(name, where, images.own_stores, images.entities, tuple(entries))

    def _copy(self, image: StoreImage, file: Path) -> None:
        before = self._copied_bytes

        def copied(done: int) -> None:
            self._refuse_stopping()
            self._copied_bytes = before + done

        image.write(file, copied)
        file.chmod(0o600)
        self._copied_bytes = before + file.stat().st_size

    def _refuse_stopping(self) -> None:
        if self._stopping:
            raise StoreUnavailable("The server is stopping.")


def refuse_taken(folder: Path) -> None:
    """`ArgumentError` unless there is nothing at this path, or an empty folder."""
    if folder.is_symlink() or folder.exists():
        if folder.is_symlink() or not folder.is_dir():
            raise ArgumentError(f"{folder} exists and is not a folder.")
        if any(folder.iterdir()):
            raise ArgumentError(f"{folder} is not empty. Choose a new folder.")


async def _cut(namespace: BackedUp, images: _Images) -> bool:
    """Fix all these images at one moment. Returns False if a store came too late."""
    stores, others = namespace.broker.stores, namespace.others
    fixes = {store: images.stores[store.name][1].fix for store in stores}
    if others is None:
        return await cut(fixes, images.catalog.fix)

    def fix_rest() -> None:
        images.catalog.fix()
        for store in others.stores:
            images.stores[store.name][1].fix()

    return await others.cut(fixes, fix_rest)


def _images(namespace: BackedUp) -> _Images:
    folder, broker = namespace.folder, namespace.broker
    keys = {}
    for name in KEY_FILES:
        with suppress(FileNotFoundError):
            keys[name] = (folder.path / name).read_bytes()
    images = _Images(
        SqliteImage(folder.catalog_path), {}, keys, folder.own_stores, len(broker.entities.records())
    )
    try:
        others = () if namespace.others is None else namespace.others.stores
        for store in (*(attached.store for attached in broker.stores), *others):
            images.stores[store.name] = store.kind, store.image()
    except BaseException:
        images.close()
        raise
    return images


def _write_secret(file: Path, content: bytes) -> None:
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(content)


async def _in_own_thread(call: Callable[[], T]) -> T:
    """Like `asyncio.to_thread`, but the server's shutdown does not wait for a disk that is stuck."""
    done: Future[T] = Future()

    def run() -> None:
        done.set_running_or_notify_cancel()
        try:
            done.set_result(call())
        except BaseException as failure:
            done.set_exception(failure)

    _start_thread(run)
    return await asyncio.wrap_future(done)


def _start_thread(call: Callable[[], None]) -> None:
    threading.Thread(target=call, name="backup", daemon=True).start()
