"""The queue management that repartition needs: describe, create a similar queue, disable, delete."""

from __future__ import annotations

from contextlib import suppress
from typing import Final
from xml.etree import ElementTree

from bendybus.atom import SERVICE_BUS
from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import EntityNotFound, InvalidOperation
from bendybus.management.client import ManagementClient
from bendybus.management.entries import Entry
from bendybus.management.properties import QUEUE, changed_elements

__all__ = ["Queues"]

_RULES: Final = f"{{{SERVICE_BUS}}}AuthorizationRules"


class Queues:
    """The queues of a namespace. Needs the right Manage.

    Minutes may pass between two calls, and no connection survives that, so each call opens its own.
    """

    def __init__(self, connection_string: str, certificate: str | None = None) -> None:
        self._namespace = ConnectionString.parse(connection_string)
        self._certificate = certificate

    def find(self, name: str) -> Entry | None:
        """`InvalidOperation` for something that is not a queue."""
        with self._management() as management:
            try:
                entry = management.get(name)
            except EntityNotFound:
                return None
        if entry.kind != QUEUE.element:
            raise InvalidOperation(
                f"'{name}' is a {entry.kind.removesuffix('Description').lower()}, and only queues are "
                "repartitioned."
            )
        return entry

    def get(self, name: str) -> Entry:
        entry = self.find(name)
        if entry is None:
            raise EntityNotFound(name)
        return entry

    def create_like(self, pattern: Entry, partition_count: int, name: str, **changed: object) -> None:
        """Create a queue like another, including its authorization rules, except for the named changes."""
        # Shown for all partitions together, but set for one.
        size = int(pattern.text("MaxSizeInMegabytes") or 0) // partition_count
        children = list(changed_elements(QUEUE, pattern, {"MaxSizeInMegabytes": size or None, **changed}))
        rules = pattern.description.find(_RULES)
        if rules is not None and len(rules):
            children.insert(_rules_place(children), ElementTree.tostring(rules, encoding="unicode"))
        with self._management() as management:
            management.create(name, QUEUE.element, children)

    def set_status(self, name: str, status: str) -> None:
        entry = self.get(name)
        if entry.text("Status") != status:
            with self._management() as management:
                management.update(name, QUEUE.element, changed_elements(QUEUE, entry, {"Status": status}))

    def delete(self, name: str) -> None:
        """Delete a queue. It is not an error if it does not exist."""
        with self._management() as management, suppress(EntityNotFound):
            management.delete(name)

    def _management(self) -> ManagementClient:
        return ManagementClient(self._namespace, self._certificate)


def _rules_place(children: list[str]) -> int:
    """The index before `Status`. The service is said to depend on the order."""
    for place, child in enumerate(children):
        if child.startswith("<Status"):
            return place
    return len(children)
