"""Handles: which link of a session is at which number, on our side and on the peer's.

Both sides choose their own numbers. A link also has a name, and the name and the role
identify it. Limits: our handle-max, the peer's, and the number of links that the
connection may have. What happens on a link: link.py.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from bendybus.amqp.conditions import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    UNATTACHED_HANDLE,
)
from bendybus.amqp.performatives import SENDER, Attach
from bendybus.engine.link import Link
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sending import SendingLink
from bendybus.engine.states import LinkState
from bendybus.errors import ProtocolError

if TYPE_CHECKING:
    from bendybus.engine.session import Session

__all__ = ["Handles"]

# "The default is 4294967295" [AMQP 2.7.2]
HANDLE_MAX_DEFAULT: Final = 0xFFFFFFFF


class Handles:
    """The links of one session."""

    __slots__ = ("_by_handle", "_by_name", "_free", "_session", "by_remote_handle", "remote_handle_max")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._by_name: dict[tuple[str, bool], Link] = {}
        self._by_handle: dict[int, Link] = {}
        self._free: list[int] = []
        """Free handles below the highest one in use, as a heap: the lowest is used first."""
        # Looked up for every transfer.
        self.by_remote_handle: dict[int, Link] = {}
        self.remote_handle_max = HANDLE_MAX_DEFAULT

    @property
    def links(self) -> list[Link]:
        return list(self._by_handle.values())

    @property
    def sending_links(self) -> list[SendingLink]:
        return [link for link in self._by_handle.values() if isinstance(link, SendingLink)]

    def has(self, name: str, role: bool) -> bool:
        return (name, role) in self._by_name

    def at(self, remote_handle: int) -> Link:
        link = self.by_remote_handle.get(remote_handle)
        if link is None:
            raise self.unattached(remote_handle)
        return link

    def unattached(self, remote_handle: int) -> ProtocolError:
        return ProtocolError(
            UNATTACHED_HANDLE,
            f"no link at handle {remote_handle} of channel {self._session.channel}",
            scope="session",
        )

    def receive_attach(self, attach: Attach) -> None:
        """A new link of the peer's, or its answer to one of ours."""
        handle_max = self._session.connection.config.handle_max
        if attach.handle > handle_max:
            # "MUST close the connection with a framing-error error-code" [AMQP 2.7.2]
            raise ProtocolError(FRAMING_ERROR, f"handle {attach.handle} is above handle-max {handle_max}")
        if attach.handle in self.by_remote_handle:
            raise ProtocolError(
                HANDLE_IN_USE,
                f"handle {attach.handle} belongs to link '{self.by_remote_handle[attach.handle].name}'",
                scope="session",
            )
        role = not attach.role
        link = self._by_name.get((attach.name, role))
        if link is None or link.state in (LinkState.DETACH_SENT, LinkState.DETACH_RECEIVED):
            # The peer may use a name again before it has answered our detach, or we its detach.
            link = self.new_link(attach.name, role)
        elif link.remote_handle is not None:
            raise ProtocolError(NOT_ALLOWED, f"link '{attach.name}' is attached already", scope="session")
        self.by_remote_handle[attach.handle] = link
        link.receive_attach(attach)

    def new_link(self, name: str, role: bool) -> Link:
        connection = self._session.connection
        links_max = connection.links_max
        if connection.link_count >= links_max:
            raise ProtocolError(
                RESOURCE_LIMIT_EXCEEDED,
                f"link '{name}' would be one more than the {links_max} that this connection may have now",
                scope="session",
            )
        handle = self._free[0] if self._free else len(self._by_handle)
        if handle > self.remote_handle_max:
            raise ProtocolError(
                RESOURCE_LIMIT_EXCEEDED,
                f"link '{name}' needs a handle above the peer's handle-max {self.remote_handle_max}",
                scope="session",
            )
        session = self._session
        link = SendingLink(session, name, handle) if role is SENDER else ReceivingLink(session, name, handle)
        if self._free:
            heappop(self._free)
        self._by_handle[handle] = link
        connection.link_count += 1
        self._by_name[name, role] = link
        return link

    def free_remote(self, link: Link) -> None:
        """The peer has detached: its handle is free."""
        if link.remote_handle is not None:
            self.by_remote_handle.pop(link.remote_handle, None)
            link.remote_handle = None

    def forget(self, link: Link) -> None:
        """Both sides have detached: the handles and the name are free."""
        self.free_remote(link)
        del self._by_handle[link.handle]
        heappush(self._free, link.handle)
        self._session.connection.link_count -= 1
        self._session.connection.value_bytes -= link.value_bytes
        if self._by_name.get((link.name, link.role)) is link:
            del self._by_name[link.name, link.role]

    def drop(self) -> None:
        """The session has ended, and so has every link."""
        unsettled = self._session.outgoing.drop_all()
        for link in self._by_handle.values():
            link.drop()
        for sender, deliveries in unsettled.items():
            sender.leave(deliveries)
