"""Listening sockets and descriptor limits: the operating system's side of the listener."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress

from bendybus.errors import ConfigError

__all__ = ["bind", "descriptor_limit", "prepare_accepted", "raise_descriptor_limit"]

# The kernel's queue of connections that nobody has accepted yet; a burst of clients reconnecting after
# a restart must fit. Linux cuts it down to net.core.somaxconn (4096 by default).
BACKLOG = 2048

# What the C runtime there allows by default.
WINDOWS_DESCRIPTORS = 8192


def bind(host: str, port: int) -> list[socket.socket]:
    """Listen on every address that `host` stands for; port 0 takes one free port for all of them."""
    listening: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            # `localhost` is 127.0.0.1 and ::1: both get the port that the first one was given.
            taken = port or (listening[0].getsockname()[1] if listening else 0)
            listening.append(_listen(family, (address[0], taken, *address[2:])))
    except OSError as error:
        for opened in listening:
            opened.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listening


def prepare_accepted(accepted: socket.socket) -> None:
    """Set what every accepted connection needs; a peer that is already gone is no error."""
    accepted.setblocking(False)
    with suppress(OSError):
        # Dispositions are small and awaited: never hold one back to fill a segment.
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Detects machines that have disappeared; AMQP's own heartbeats are optional.
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def raise_descriptor_limit() -> None:
    """Allow this process as many open files as the system lets it have."""
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 - does not exist on Windows

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems report no hard limit and still refuse to set one.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_limit() -> int:
    """How many files and sockets this process may have open."""
    if sys.platform == "win32":
        return WINDOWS_DESCRIPTORS
    import resource  # noqa: PLC0415 - does not exist on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else sys.maxsize


def _listen(family: int, address: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        if sys.platform != "win32":
            # A restart must not wait for the old connections' TIME_WAIT.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
