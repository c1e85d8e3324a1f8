"""A data folder made from a backup, while no server runs on it.

The original is not touched. Every SQLite store becomes a file inside the new data
folder, a PostgreSQL store is restored into a database that the caller names, and the namespace and its
stores get a new identity: the restored server is refused the original's stores, and the other way round.
The folder is filled under another name and renamed, so under its own name it is whole or absent.
What a backup holds: backup_format.py.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from bendybus.errors import ConfigError
from bendybus.server.backup_format import (
    CATALOG_FILE,
    KEY_FILES,
    TLS_FILES,
    Manifest,
    NamespaceEntry,
    StoreEntry,
    read_manifest,
    sync_folder,
    sync_tree,
    verify,
)
from bendybus.server.settings import STORES_DEFAULT
from bendybus.server.stores import postgres_driver
from bendybus.store.folder import DataFolder, StoreList
from bendybus.store.sqlite.catalog import SqliteCatalog
from bendybus.store.sqlite.store import hand_over

if TYPE_CHECKING:
    from bendybus.store.postgres.address import StoreAddress

__all__ = ["Restored", "restore"]

ATTACHED_FOLDER: Final = "attached"
"""Where the copies of SQLite stores go that were not the data folder's own."""


@dataclass(frozen=True, slots=True)
class Restored:
    manifest: Manifest
    keys: bool
    """Whether all namespaces have their root keys."""


def restore(backup: Path, data: Path, databases: Mapping[str, str]) -> Restored:
    """Make the data folder `data` from a backup.

    `databases`: for each PostgreSQL store by name, the URL of the database to restore it into.
    """
    manifest = read_manifest(backup)
    _refuse_taken(data)
    verify(backup)
    addresses = _addresses(backup, manifest, databases)
    with _draft(data) as draft:
        folder = DataFolder(draft)
        for number, entry in enumerate(manifest.namespaces):
            own = folder if number == 0 else folder.of_namespace(entry.name)
            final = DataFolder(data.absolute()) if number == 0 else DataFolder(data).of_namespace(entry.name)
            _restore_namespace(backup, entry, own, final.path.absolute(), databases, addresses)
        if manifest.named:
            folder.record_namespaces([entry.name for entry in manifest.namespaces])
        for name in TLS_FILES:
            _copy_if_there(backup / name, draft / name)
        sync_tree(draft)
    return Restored(
        manifest, all((backup / entry.folder / KEY_FILES[0]).exists() for entry in manifest.namespaces)
    )


def _refuse_taken(data: Path) -> None:
    if data.is_symlink() or (data.exists() and not data.is_dir()):
        raise ConfigError(f"{data} exists and is not a folder")
    if data.exists() and any(data.iterdir()):
        raise ConfigError(f"{data} is not empty: restore into a new folder, and what is there stays as it is")


@contextmanager
def _draft(data: Path) -> Iterator[Path]:
    """A folder that replaces `data` if everything succeeds, and is removed otherwise."""
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{data.name}.partial-", dir=data.parent))
        try:
            yield draft
            _refuse_taken(data)
            draft.rename(data)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_folder(data.parent)
    except OSError as error:
        raise ConfigError(f"{data} cannot be made: {error.strerror}") from error


def _addresses(backup: Path, manifest: Manifest, databases: Mapping[str, str]) -> dict[str, StoreAddress]:
    """Where PostgreSQL stores go; refused before anything is written when one cannot."""
    stores = (store for entry in manifest.namespaces for store in entry.stores)
    wanted = {store.name: store for store in stores if store.kind == "postgresql"}
    if strange := sorted(databases.keys() - wanted.keys()):
        raise ConfigError(f"--store {strange[0]}=...: the backup has no PostgreSQL store of that name")
    if missing := sorted(wanted.keys() - databases.keys()):
        raise ConfigError(
            f"the backup has the PostgreSQL store '{missing[0]}': say which database to restore it into, "
            f"--store {missing[0]}=postgresql://USER@HOST:PORT/DATABASE"
        )
    return {name: _address(backup / wanted[name].file, name, url) for name, url in databases.items()}


def _address(dump: Path, name: str, url: str) -> StoreAddress:
    with postgres_driver():
        from bendybus.store.postgres.address import parse_address  # noqa: PLC0415
        from bendybus.store.postgres.image import refuse_unfit  # noqa: PLC0415
    try:
        address = replace(parse_address(url), name=name)
    except ConfigError as error:
        raise ConfigError(f"--store {name}: {error}") from None
    refuse_unfit(dump, address)
    return address


# -- one namespace ----------------------------------------------------------------


def _restore_namespace(
    backup: Path,
    entry: NamespaceEntry,
    folder: DataFolder,
    final: Path,
    databases: Mapping[str, str],
    addresses: Mapping[str, StoreAddress],
) -> None:
    """`final`: where the folder will be, for the URLs of stores."""
    source, identity = backup / entry.folder, uuid.uuid4().hex
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in KEY_FILES:
        _copy_if_there(source / name, folder.path / name)
    _copy(source / CATALOG_FILE, folder.catalog_path)
    _rename_namespace(folder.catalog_path, identity)
    # A new folder would create this many stores itself: those that the backup does not have count as retired.
    own = [f"store-{number}" for number in range(max(entry.own_stores, STORES_DEFAULT))]
    attached: dict[str, str] = {}
    for store in entry.stores:
        if store.kind == "postgresql":
            attached[store.name] = databases[store.name]
        elif store.name in own:
            _restore_file(backup, store, folder.path / f"{store.name}.db", identity)
        else:
            file = Path(ATTACHED_FOLDER, f"{store.name}.db")
            _restore_file(backup, store, folder.path / file, identity)
            attached[store.name] = f"sqlite://{quote(str(final / file))}"
    folder.record_stores(len(own))
    retired = frozenset(own) - {store.name for store in entry.stores}
    if attached or retired:
        folder.keep_store_list(StoreList(attached, retired))
    # Last, because a database is not undone if something fails.
    for store in entry.stores:
        if store.kind == "postgresql":
            _restore_database(backup / store.file, addresses[store.name], identity)


def _rename_namespace(catalog_path: Path, identity: str) -> None:
    catalog = SqliteCatalog(catalog_path)
    catalog.open()
    try:
        catalog.describe_namespace({**catalog.namespace(), "id": identity})
    finally:
        catalog.close()


def _restore_file(backup: Path, store: StoreEntry, file: Path, identity: str) -> None:
    _copy(backup / store.file, file)
    hand_over(file, identity)


def _restore_database(dump: Path, address: StoreAddress, identity: str) -> None:
    from bendybus.store.postgres.image import restore_image  # noqa: PLC0415 - see _address

    restore_image(dump, address, identity)


def _copy_if_there(source: Path, target: Path) -> None:
    if source.exists():
        _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(mode=0o700, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o600)
