"""Which messaging stores a server works with: the data folder's own, or those given by URL.

A file of the data folder's own that is gone has been removed: the folder says so and the server does not
start. One that was given by URL may be on a disk of its own, which is not there now: its store is away.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bendybus.errors import ConfigError
from bendybus.server.settings import STORES_DEFAULT, Settings
from bendybus.store.folder import DataFolder
from bendybus.store.protocol import MessagingStore
from bendybus.store.sqlite.store import SqliteStore

__all__ = ["messaging_stores"]


def messaging_stores(
    settings: Settings, folder: DataFolder, placed: Container[str] = frozenset()
) -> list[MessagingStore]:
    """The stores, not yet opened; `ConfigError` names a URL that cannot be meant.

    `placed`: the names of those that are known to hold partitions.
    """
    if not settings.store_urls:
        return [SqliteStore(path) for path in folder.store_paths(settings.stores, STORES_DEFAULT)]
    stores: dict[str, MessagingStore] = {}
    for url in settings.store_urls:
        store = _store_at(url, placed)
        if store.name in stores:
            raise ConfigError(f"--store {url}: there is another store by the name '{store.name}' already")
        stores[store.name] = store
    return list(stores.values())


def _store_at(url: str, placed: Container[str]) -> MessagingStore:
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        raise ConfigError(f"--store {url}: '{parts.scheme}' is not a kind of store; known is sqlite:///PATH")
    path = Path(unquote(parts.path))
    if parts.netloc or parts.query or parts.fragment or not path.is_absolute() or not path.name:
        raise ConfigError(f"--store {url}: write sqlite:///PATH, with an absolute path")
    has_partitions = path.stem in placed
    if not path.parent.is_dir() and not has_partitions:
        raise ConfigError(f"--store {url}: the folder {path.parent} does not exist")
    return SqliteStore(path, has_partitions=has_partitions)
