"""Attaching and retiring messaging stores while the server runs.

A store that is attached is looked at, opened, written down in the data folder
(store/folder.py, `stores.json`) and only then worked with; one that is retired keeps
nothing, is crossed out there and only then let go. So the next start has the same
stores without being told. Emptying a store: broker/draining.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from bendybus.broker.broker import Broker
from bendybus.broker.lifecycle import StoreState
from bendybus.errors import ArgumentError, ConfigError, EntityExists, SetupError, StoreUnavailable
from bendybus.server.stores import namespace_id, shown_url, store_at
from bendybus.store.faults import StoreFaults
from bendybus.store.folder import DataFolder
from bendybus.store.protocol import MessagingStore

__all__ = ["StoreKeeper"]

logger = logging.getLogger(__name__)

URL_LENGTH_MAX: Final = 2000


class StoreKeeper:
    def __init__(
        self,
        broker: Broker,
        folder: DataFolder,
        faults: StoreFaults | None,
        close: Callable[[MessagingStore], None],
    ) -> None:
        self._broker = broker
        self._folder = folder
        self._faults = faults
        self._close = close
        self._attached: dict[str, MessagingStore] = {}
        """Those that were attached since the start, for us to close."""
        self._changing = asyncio.Lock()

    async def attach(self, url: str, name: str | None = None) -> str:
        """Work with the store at this address, now and after the next start; gives its name."""
        if len(url) > URL_LENGTH_MAX:
            raise ArgumentError(f"A store's URL has at most {URL_LENGTH_MAX} letters.")
        async with self._changing:
            try:
                store = store_at(url, (), name)
                await asyncio.to_thread(self._open, store)
            except (ConfigError, SetupError) as error:
                raise ArgumentError(f"{shown_url(url)} cannot be attached: {error}") from error
            except StoreUnavailable as error:
                raise StoreUnavailable(f"{shown_url(url)} cannot be attached now: {error}") from error
            try:
                listed = self._folder.store_list()
                kept = replace(listed, attached={**listed.attached, store.name: url})
                await asyncio.to_thread(self._folder.keep_store_list, kept)
                try:
                    await self._broker.attach(self._faults.add(store) if self._faults else store)
                except BaseException:
                    await asyncio.to_thread(self._folder.keep_store_list, listed)
                    if self._faults is not None:
                        self._faults.remove(store.name)
                    raise
            except BaseException:
                await asyncio.to_thread(self._close, store)
                raise
            self._attached[store.name] = store
        logger.info("store %s is attached", store.name)
        return store.name

    def _open(self, store: MessagingStore) -> None:
        """Refuse what cannot be used, and what is used already; nothing is written before that is known."""
        if any(each.name == store.name for each in self._broker.stores):
            raise EntityExists(f"There is a messaging store '{store.name}' already.")
        store.namespace = namespace_id(self._broker.catalog)
        identity = store.examine()
        for each in self._broker.stores:
            if each.store.kind != store.kind:
                continue
            if each.state is StoreState.AWAY:
                # It cannot be asked, and one store under two names would be everybody's ruin.
                raise StoreUnavailable(f"whether it is '{each.name}', which is away, cannot be told")
            if each.store.examine() == identity:
                raise EntityExists(f"That is the messaging store '{each.name}', which is attached already.")
        store.open()

    async def retire(self, name: str) -> None:
        """Let go of a store that keeps nothing, for good; its file or database stays where it is."""
        async with self._changing:
            attached = self._broker.stores[name]

            def forget() -> None:
                listed = self._folder.store_list()
                left = {each: url for each, url in listed.attached.items() if each != name}
                retired = listed.retired if name in listed.attached else listed.retired | {name}
                self._folder.keep_store_list(replace(listed, attached=left, retired=retired))

            await self._broker.detach(name, forget)
            if self._faults is not None:
                self._faults.remove(name)
            self._attached.pop(name, None)
            await asyncio.to_thread(self._close, attached.store)
        logger.info("store %s is retired", name)

    def close(self) -> None:
        """To be called when the broker has let go of them."""
        for store in self._attached.values():
            self._close(store)
