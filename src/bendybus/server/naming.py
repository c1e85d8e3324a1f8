"""Several namespaces in one data folder: which there are, where each is kept, how each is reached.

A single namespace needs no name: it may have another name at each start, as with the vendor's
emulator, and its files are in the data folder itself. When there is a second one, the names
are recorded, and each further namespace has a folder inside. Every namespace in the data
folder is served, whether or not the configuration names it: a missing line removes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack

from bendybus.auth.connection_strings import local_connection_string
from bendybus.auth.key_ring import ROOT_RULE_NAME
from bendybus.errors import ArgumentError, ConfigError
from bendybus.namespaces import NAMESPACE_DEFAULT, Namespace, check_namespace_name
from bendybus.server.settings import Settings
from bendybus.store.folder import DataFolder

__all__ = ["connection_strings", "namespace_folders", "refuse_shared_stores"]


def namespace_folders(
    folder: DataFolder, wanted: Sequence[str], settings: Settings, exits: AsyncExitStack
) -> dict[str, DataFolder]:
    """The namespaces to serve and the folder of each, open; first the data folder itself."""
    names: dict[str, str] = {name.lower(): name for name in folder.namespaces()}
    alone = not names
    for name in wanted:
        names.setdefault(name.lower(), name)
    if alone and len(names) < 2:
        return {next(iter(names.values()), NAMESPACE_DEFAULT): folder}
    refuse_shared_stores(settings)
    folders: dict[str, DataFolder] = {}
    for name in names.values():
        try:
            check_namespace_name(name)
        except ArgumentError as error:
            raise ConfigError(str(error)) from error
        folders[name] = own = folder.of_namespace(name) if folders else folder
        if own is not folder:
            own.open()
            exits.callback(own.close)
    return folders


def refuse_shared_stores(settings: Settings) -> None:
    """`ConfigError` where a second namespace would use what belongs to the first."""
    if settings.store_urls:
        raise ConfigError("--store and several namespaces cannot be combined: give each a server of its own")
    if settings.allowed_stores:
        raise ConfigError(
            "--allow-store and several namespaces cannot be combined: the key of one namespace would reach "
            "the machine that all of them share"
        )


def connection_strings(
    namespaces: Iterable[Namespace], host: str, port: int, *, tls: bool = False
) -> dict[str, str]:
    """What a client of each namespace on this machine needs: its key, or its name where others share that.

    A namespace whose keys open nothing has none to show.
    """
    strings: dict[str, str] = {}
    taken: set[str | None] = set()
    for namespace in namespaces:
        key = None
        if namespace.keys.local_auth:
            key = next(rule.primary_key for rule in namespace.keys.named(ROOT_RULE_NAME, ""))
        shown = f"{namespace.name.lower()}.localhost" if key in taken else host
        taken.add(key)
        strings[namespace.name] = local_connection_string(shown, port, key, tls=tls)
    return strings
