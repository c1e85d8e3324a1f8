"""Which messaging stores a server works with: the data folder's own, or those given by URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from bendybus.errors import ConfigError
from bendybus.server.settings import STORES_DEFAULT, Settings
from bendybus.store.folder import DataFolder
from bendybus.store.protocol import MessagingStore
from bendybus.store.sqlite.store import SqliteStore

__all__ = ["messaging_stores"]


def messaging_stores(settings: Settings, folder: DataFolder) -> list[MessagingStore]:
    """The stores, not yet opened; `ConfigError` names a URL that cannot be meant."""
    if not settings.store_urls:
        return [SqliteStore(path) for path in folder.store_paths(settings.stores, STORES_DEFAULT)]
    stores: dict[str, MessagingStore] = {}
    for url in settings.store_urls:
        store = _store_at(url)
        if store.name in stores:
            raise ConfigError(f"--store {url}: there is another store by the name '{store.name}' already")
        stores[store.name] = store
    return list(stores.values())


def _store_at(url: str) -> MessagingStore:
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        raise ConfigError(f"--store {url}: '{parts.scheme}' is not a kind of store; known is sqlite:///PATH")
    path = Path(unquote(parts.path))
    if parts.netloc or parts.query or parts.fragment or not path.is_absolute() or not path.name:
        raise ConfigError(f"--store {url}: write sqlite:///PATH, with an absolute path")
    if not path.parent.is_dir():
        raise ConfigError(f"--store {url}: the folder {path.parent} does not exist")
    return SqliteStore(path)
