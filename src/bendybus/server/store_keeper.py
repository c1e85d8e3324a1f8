"""Attaching and retiring messaging stores while the server runs.

A store that is attached must be allowed (allowed_stores.py). It is examined and opened, written down in
the data folder (store/folder.py, `stores.json`), and only then used. A store that is retired keeps
nothing; it is removed from the list and then closed. So the next start has the same stores without being
told. Emptying a store: broker/draining.py.

Opening a store may never end: a disk may hang, a machine may not answer. So it has a thread
and a time limit, and delays neither other changes nor the shutdown.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Final

from bendybus.broker.broker import Broker
from bendybus.broker.forgetting import Loss
from bendybus.broker.lifecycle import StoreState
from bendybus.broker.stores import AttachedStore
from bendybus.errors import ArgumentError, ConfigError, EntityExists, SetupError, StoreUnavailable
from bendybus.server.allowed_stores import AllowedStores
from bendybus.server.stores import namespace_id, shown_url, store_at
from bendybus.store.faults import StoreFaults
from bendybus.store.folder import DataFolder
from bendybus.store.protocol import MessagingStore

__all__ = ["StoreKeeper"]

logger = logging.getLogger(__name__)

URL_LENGTH_MAX: Final = 2000

# Longer than PostgreSQL's connection timeout on two hosts. Clients wait for the answer.
OPEN_TIMEOUT_S: Final = 15.0
# Stores that are still being opened after that. Each costs a thread.
LATE_MAX: Final = 4


class StoreKeeper:
    def __init__(
        self,
        broker: Broker,
        folder: DataFolder,
        allowed: AllowedStores,
        faults: StoreFaults | None,
        close: Callable[[MessagingStore], None],
    ) -> None:
        self._broker = broker
        self._folder = folder
        self._allowed = allowed
        self._faults = faults
        self._close = close
        self._attached: dict[str, MessagingStore] = {}
        """Those that were attached since the start, for us to close."""
        self._attaching = asyncio.Lock()
        """Held while a store is examined: the second of two requests for one store must see the first."""
        self._changing = asyncio.Lock()
        """Held while the list of stores changes, which takes a moment."""
        self._late: set[Future[None]] = set()
        """Stores that did not open in time and are still being opened."""

    async def attach(self, url: str, name: str | None = None) -> str:
        """Use the store at this address, now and after a restart. Returns its name."""
        if len(url) > URL_LENGTH_MAX:
            raise ArgumentError(f"A store's URL has at most {URL_LENGTH_MAX} characters.")
        url = self._allowed.admitted(url)
        async with self._attaching:
            try:
                store = store_at(url, (), name, self._folder.timelines_path)
                await self._open_in_time(store)
            except (ConfigError, SetupError) as error:
                raise ArgumentError(f"{shown_url(url)} cannot be attached: {error}") from error
            except StoreUnavailable as error:
                raise StoreUnavailable(f"{shown_url(url)} cannot be attached now: {error}") from error
            try:
                async with self._changing:
                    await self._enter(store, url)
            except BaseException:
                await asyncio.to_thread(self._close, store)
                raise
        logger.info("store %s is attached", store.name)
        return store.name

    async def _enter(self, store: MessagingStore, url: str) -> None:
        """Record the store and use it, or neither."""
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
        self._attached[store.name] = store

    async def _open_in_time(self, store: MessagingStore) -> None:
        """Open the store on a separate thread; `StoreUnavailable` if that takes too long."""
        self._late = {opening for opening in self._late if not opening.done()}
        if len(self._late) >= LATE_MAX:
            raise StoreUnavailable(f"{LATE_MAX} other stores are still being opened")
        opening: Future[None] = Future()

        def run() -> None:
            opening.set_running_or_notify_cancel()
            try:
                self._open(store)
            except BaseException as error:
                opening.set_exception(error)
            else:
                opening.set_result(None)

        # Not a thread of the loop's: the server's end would wait for it.
        threading.Thread(target=run, name=f"open-{store.name}", daemon=True).start()
        opened = asyncio.wrap_future(opening)
        try:
            await asyncio.wait_for(opened, OPEN_TIMEOUT_S)
        except (TimeoutError, asyncio.CancelledError) as reason:
            # It is closed if it opens after all.
            opening.add_done_callback(lambda done: None if done.exception() else store.close())
            self._late.add(opening)
            if isinstance(reason, asyncio.CancelledError):
                raise
            raise StoreUnavailable(f"it did not open in {OPEN_TIMEOUT_S:g} seconds") from None

    def _open(self, store: MessagingStore) -> None:
        """Refuse what cannot be used, and what is used already; nothing is written before that is known."""
        if any(each.name == store.name for each in self._broker.stores):
            raise EntityExists(f"The messaging store '{store.name}' already exists.")
        store.namespace = namespace_id(self._broker.catalog)
        identity = store.examine()
        for each in self._broker.stores:
            if each.store.kind != store.kind:
                continue
            if each.state is StoreState.AWAY:
                # It cannot be asked, and one store under two names would destroy messages.
                raise StoreUnavailable(f"it may be the messaging store '{each.name}', which is away")
            if each.store.examine() == identity:
                raise EntityExists(f"That is the messaging store '{each.name}', which is attached already.")
        store.open()

    async def retire(self, name: str) -> None:
        """Remove an empty store from the list. Its file or database is not deleted."""
        async with self._changing:
            attached = self._broker.stores[name]
            await self._broker.detach(name, partial(self._cross_out, name))
            await self._let_go(attached)
        logger.info("store %s is retired", name)

    async def forget(self, name: str) -> Loss:
        """Give up a store that is lost for good, with everything in it."""
        async with self._changing:
            attached = self._broker.stores[name]
            loss = await self._broker.forget(name, partial(self._cross_out, name))
            await self._let_go(attached)
        return loss

    def _cross_out(self, name: str) -> None:
        """The next start does not have it."""
        listed = self._folder.store_list()
        left = {each: url for each, url in listed.attached.items() if each != name}
        retired = listed.retired if name in listed.attached else listed.retired | {name}
        self._folder.keep_store_list(replace(listed, attached=left, retired=retired))

    async def _let_go(self, attached: AttachedStore) -> None:
        if self._faults is not None:
            self._faults.remove(attached.name)
        self._attached.pop(attached.name, None)
        await asyncio.to_thread(self._close, attached.store)

    def close(self) -> None:
        """Called when the broker no longer uses them."""
        for store in self._attached.values():
            self._close(store)
