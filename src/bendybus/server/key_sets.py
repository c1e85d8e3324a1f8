"""The public keys of an identity provider, from a file or from a URL that is fetched regularly.

A file is read again when it has changed, so keys are rolled over by replacing it. A URL
is fetched at the start, at regular intervals, and soon after a token with an unknown key
has arrived; always in a thread, with limits on time and size. If the provider does not
answer, the keys fetched last are kept. What the keys are for: auth/jwt.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from contextlib import AsyncExitStack
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from bendybus.auth.roles import WELL_KNOWN_ROLES, Role
from bendybus.errors import ArgumentError, ConfigError
from bendybus.server.settings import Settings

if TYPE_CHECKING:
    from email.message import Message

    from bendybus.auth.jwt import KeySet, TrustedIssuer

__all__ = ["FileKeys", "UrlKeys", "trusted_issuer"]

logger = logging.getLogger(__name__)

# Entra's document has about ten kilobytes.
DOCUMENT_BYTES_MAX: Final = 1024 * 1024

FETCH_TIMEOUT_S: Final = 5.0
# Providers publish a key a day or more before they use it.
REFRESH_S: Final = 3600.0
# Anyone can make up tokens with unknown keys. They cannot make us fetch more often than this.
RETRY_S: Final = 30.0


async def trusted_issuer(settings: Settings, exits: AsyncExitStack) -> TrustedIssuer | None:
    """The provider in the settings, ready for use; None if there is none."""
    if settings.jwt_issuer is None or settings.jwt_keys is None:
        return None
    # Imported here because it takes 60 ms, which only servers that use it should pay.
    from bendybus.auth.jwt import DEFAULT_AUDIENCES, TrustedIssuer  # noqa: PLC0415

    try:
        roles = [*WELL_KNOWN_ROLES, *map(Role.parse, settings.jwt_roles)]
    except ArgumentError as error:
        raise ConfigError(f"--jwt-role, WHO=WHAT[@SCOPE]: {error}") from error
    keys: FileKeys | UrlKeys
    if "://" in settings.jwt_keys:
        keys = UrlKeys(settings.jwt_keys)
        await keys.start()
        exits.push_async_callback(keys.stop)
    else:
        keys = FileKeys(Path(settings.jwt_keys))
    return TrustedIssuer(settings.jwt_issuer, settings.jwt_audiences or DEFAULT_AUDIENCES, keys, roles)


class FileKeys:
    """The keys in a file. `ConfigError` if it cannot be used at the start."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_at = self._stamp()
        try:
            self._keys = self._read()
        except (OSError, ValueError) as reason:
            raise ConfigError(f"--jwt-keys {file}: {_said(reason)}") from reason

    def current(self) -> KeySet:
        stamp = self._stamp()
        if stamp != self._read_at:
            # Once for each change: a file that has become unreadable is reported once.
            self._read_at = stamp
            try:
                self._keys = self._read()
                logger.info("%s has changed and was read again", self._file)
            except (OSError, ValueError) as reason:
                logger.warning(
                    "%s cannot be read, so the previous keys stay in use: %s", self._file, _said(reason)
                )
        return self._keys

    def missed(self) -> None:
        """Nothing to do: the file has already been checked."""

    def _stamp(self) -> tuple[int, int, int]:
        try:
            status = os.stat(self._file)
        except OSError:
            return 0, 0, 0
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> KeySet:
        with self._file.open("rb") as file:
            return _parse(file.read(DOCUMENT_BYTES_MAX + 1))


class UrlKeys:
    """The keys that a URL serves. `start` fetches them, and again at intervals; `stop` ends that."""

    def __init__(self, url: str) -> None:
        from bendybus.auth.jwt import KeySet  # noqa: PLC0415 - as above

        refuse_plain(url)
        self._url = url
        self._keys = KeySet()
        self._wanted = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None

    def current(self) -> KeySet:
        return self._keys

    def missed(self) -> None:
        self._wanted.set()

    async def start(self) -> None:
        await self._fetch()
        self._asking = asyncio.get_running_loop().create_task(self._go_on())

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            if self._keys.keys:
                try:
                    async with asyncio.timeout(REFRESH_S - RETRY_S):
                        await self._wanted.wait()
                except TimeoutError:
                    pass
            self._wanted.clear()
            await self._fetch()

    async def _fetch(self) -> None:
        try:
            self._keys = await asyncio.to_thread(fetch, self._url)
        except (OSError, ValueError, HTTPException) as reason:
            # If we have keys, tokens are still accepted while the provider fails; without keys, none are yet.
            logger.warning("the keys of %s could not be fetched: %s", self._url, _said(reason))


def refuse_plain(url: str) -> None:
    """Keys that anyone on the network could replace prove nothing. This machine's own URLs are for tests."""
    parts = urlsplit(url)
    local = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
        raise ConfigError(f"--jwt-keys {url}: the URL must begin with https://")


class _OnlyOverTls(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        try:
            refuse_plain(newurl)
        except ConfigError as refusal:
            raise URLError(str(refusal)) from refusal
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]  # typeshed's own Message differs


def _open(url: str) -> HTTPResponse:
    answer: HTTPResponse = build_opener(_OnlyOverTls).open(url, timeout=FETCH_TIMEOUT_S)
    return answer


def fetch(url: str) -> KeySet:
    """Fetch the keys. Blocks for a limited time."""
    ends_at = time.monotonic() + FETCH_TIMEOUT_S
    text = b""
    with _open(url) as answer:
        # In pieces: a server that sends a byte now and then would otherwise block the thread for ever.
        while len(text) <= DOCUMENT_BYTES_MAX and (piece := answer.read1(DOCUMENT_BYTES_MAX)):
            text += piece
            if time.monotonic() > ends_at:
                raise TimeoutError(f"not all there after {FETCH_TIMEOUT_S:g} s")
    return _parse(text)


def _parse(text: bytes) -> KeySet:
    from bendybus.auth.jwt import KeySet  # noqa: PLC0415 - as above

    if len(text) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"larger than {DOCUMENT_BYTES_MAX} bytes")
    try:
        return KeySet.parse(json.loads(text))
    except RecursionError:
        raise ValueError("not a JSON Web Key Set: nested too deep") from None


def _said(reason: Exception) -> str:
    return reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
