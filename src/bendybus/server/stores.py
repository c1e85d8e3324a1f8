"""The messaging stores of a server: those of its data folder or given by URL, and those attached later.

All of them are examined before the first is opened, so a server that refuses to start has
written to none.

A file that is gone and holds partitions is a store that is away: its disk may not be mounted, or it was
removed. None is made in its place. How such a store is given up: broker/forgetting.py.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from bendybus.errors import ConfigError, StoreCorrupted, StoreUnavailable
from bendybus.server.settings import STORES_DEFAULT, Settings
from bendybus.store.catalog import Catalog, EntityRecord
from bendybus.store.folder import DataFolder
from bendybus.store.protocol import MessagingStore
from bendybus.store.sqlite.store import SqliteStore

__all__ = [
    "examine_stores",
    "kind_of",
    "messaging_stores",
    "namespace_id",
    "postgres_driver",
    "refuse_missing_stores",
    "shown_url",
    "sqlite_path",
    "store_at",
]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
KNOWN = "known are sqlite:///PATH and postgresql://USER@HOST:PORT/DATABASE"


def messaging_stores(
    settings: Settings, folder: DataFolder, placed: Container[str] = frozenset()
) -> list[MessagingStore]:
    """The stores, not yet opened; `ConfigError` names an invalid URL.

    `placed`: the names of those that are known to hold partitions.
    """
    listed = folder.store_list()
    stores: dict[str, MessagingStore] = {}
    if not settings.store_urls:
        paths = folder.store_paths(settings.stores, STORES_DEFAULT)
        own = [SqliteStore(path, has_partitions=path.stem in placed) for path in paths]
        stores = {store.name: store for store in own if store.name not in listed.retired}
    for url in settings.store_urls:
        try:
            store = store_at(url, placed, timelines=folder.timelines_path)
            if store.name in stores:
                raise ConfigError(f"another store is already called '{store.name}' already")
        except ConfigError as error:
            raise ConfigError(f"--store {shown_url(url)}: {error}") from None
        stores[store.name] = store
    for name, url in listed.attached.items():
        # The command line takes precedence over the URL with which a store was attached.
        if name not in stores:
            try:
                stores[name] = store_at(url, placed, name, folder.timelines_path)
            except ConfigError as error:
                raise ConfigError(f"the attached store {shown_url(url)}: {error}") from None
    if not stores:
        raise ConfigError("all messaging stores have been retired, and none is given by --store")
    return list(stores.values())


def refuse_missing_stores(stores: Sequence[MessagingStore], records: Iterable[EntityRecord]) -> None:
    """`ConfigError` when the catalog has partitions in a store that is not among these."""
    names = {store.name for store in stores}
    missing: dict[str, list[str]] = {}
    for record in records:
        for name in dict.fromkeys(record.placement):
            if name not in names:
                missing.setdefault(name, []).append(record.path)
    if missing:
        told = "; ".join(
            f"'{name}' with partitions of {len(paths)} entities, such as '{paths[0]}'"
            for name, paths in missing.items()
        )
        raise ConfigError(
            f"messaging stores of this namespace are missing from the command line: {told}. "
            "Start the server with the --store options that it had before"
        )


def namespace_id(catalog: Catalog) -> str:
    """What stores remember of the namespace that they belong to; made once, and kept in the catalog."""
    description = catalog.namespace()
    known = description.get("id")
    if isinstance(known, str):
        return known
    catalog.describe_namespace({**description, "id": (made := uuid.uuid4().hex)})
    return made


def examine_stores(
    stores: Sequence[MessagingStore], namespace: str, known: Container[str] = frozenset()
) -> None:
    """Tell the stores which namespace owns them. Refuse stores that cannot be used or were given twice.

    Nothing is written. `known`: the names of stores that have been ours; a damaged one of
    these counts as away.
    """
    seen: dict[str, str] = {}
    for store in stores:
        store.namespace = namespace
        try:
            identity = store.examine()
        except StoreUnavailable:
            # Not refused here; `open` reports it.
            continue
        except StoreCorrupted:
            if store.name not in known:
                raise
            continue
        if identity in seen:
            raise ConfigError(
                f"the messaging stores '{seen[identity]}' and '{store.name}' are one and the same"
            )
        seen[identity] = store.name


def store_at(
    url: str, placed: Container[str], name: str | None = None, timelines: Path | None = None
) -> MessagingStore:
    """The store at this address, not yet opened; `name` instead of the one that the address gives it."""
    if name is not None and not _NAME.fullmatch(name):
        raise ConfigError(
            f"'{name}' is not a valid store name: letters, digits, '.', '_' and '-', up to 100 of them"
        )
    if kind_of(url) == "sqlite":
        return _sqlite_store(url, placed, name)
    return _postgres_store(url, name, timelines)


def kind_of(url: str) -> Literal["sqlite", "postgresql"]:
    """The kind of store that the URL names; `ConfigError` if there is no such kind."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        raise ConfigError(f"it cannot be read; {KNOWN}") from None
    if scheme == "sqlite":
        return "sqlite"
    if scheme in ("postgresql", "postgres"):
        return "postgresql"
    raise ConfigError(f"'{scheme}' is not a kind of store; {KNOWN}")


def sqlite_path(url: str) -> Path:
    """The file that a `sqlite:` URL names; `ConfigError` when it names none."""
    parts = urlsplit(url)
    text = unquote(parts.path)
    path = Path(text)
    absolute = path.is_absolute() and path.name and "\0" not in text
    if parts.netloc or parts.query or parts.fragment or not absolute:
        raise ConfigError("write sqlite:///PATH, with an absolute path")
    return path


def _sqlite_store(url: str, placed: Container[str], name: str | None) -> MessagingStore:
    path = sqlite_path(url)
    has_partitions = (name or path.stem) in placed
    if not path.parent.is_dir() and not has_partitions:
        raise ConfigError(f"the folder {path.parent} does not exist")
    return SqliteStore(path, name, has_partitions=has_partitions)


@contextmanager
def postgres_driver() -> Iterator[None]:
    """For imports that need the PostgreSQL driver, which is optional."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"PostgreSQL needs a package that is not installed ({error.name or error}): "
            f"pip install 'bendybus[postgres]'"
        ) from None


def _postgres_store(url: str, name: str | None, timelines: Path | None) -> MessagingStore:
    with postgres_driver():
        from bendybus.store.postgres.address import parse_address  # noqa: PLC0415
        from bendybus.store.postgres.store import PostgresStore  # noqa: PLC0415
    address = parse_address(url, timelines=timelines)
    return PostgresStore(address if name is None else replace(address, name=name))


def shown_url(url: str) -> str:
    """The URL without a possible password."""
    if not url.startswith("sqlite:"):
        url = re.sub(r"//.*@", "//***@", url)
    return re.sub(r"(password=)[^&]*", r"\1***", url)
