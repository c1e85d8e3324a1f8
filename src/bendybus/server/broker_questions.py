"""Questions of one broker to the others, for routes that show what every broker has (admin/other_brokers.py).

A question is one call between brokers, with its name and what comes with it. Answers are bounded in time and
in size: a page must not wait for a broker that hangs, and a frame that is too large would end the connection.
The counters of thousands of entities are large and repetitive, so large answers are compressed.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeVar

import msgspec

from bendybus.cluster.cluster import Cluster
from bendybus.cluster.frames import Frame
from bendybus.cluster.items import Call
from bendybus.cluster.link import PeerLink
from bendybus.errors import BrokerError, StoreUnavailable, Unavailable

__all__ = ["QUESTION_CALL", "BrokerQuestions"]

logger = logging.getLogger(__name__)

QUESTION_CALL: Final = "question"

# A person waits for the page, and a healthy broker answers within milliseconds.
ANSWER_TIMEOUT_S: Final = 5.0
# Half of what earlier versions read in a frame: other answers may be in it.
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
# Smaller answers are not worth the time.
COMPRESSED_FROM_BYTES: Final = 256 * 1024
# After it was decompressed.
WHOLE_BYTES_MAX: Final = 128 * 1024 * 1024

B = TypeVar("B")
T = TypeVar("T")


class _Question(msgspec.Struct, array_like=True, frozen=True):
    what: str
    body: msgspec.Raw


class _Answer(msgspec.Struct, array_like=True, frozen=True):
    body: bytes
    compressed: bool


class BrokerQuestions:
    """`OtherBrokers` of one broker."""

    def __init__(self, cluster: Callable[[], Cluster]) -> None:
        self._cluster = cluster
        self._answers: dict[str, tuple[type, Callable[[Any], Awaitable[object]]]] = {}

    @property
    def name(self) -> str:
        return self._cluster().me.broker

    @property
    def brokers(self) -> Collection[str]:
        return self._cluster().peers.by_name.keys()

    @property
    def owners(self) -> Mapping[str, str]:
        cluster = self._cluster()
        return {store: cluster.owner_of(store) or "" for store in sorted(cluster.all_stores)}

    # -- answers ------------------------------------------------------------------

    def answer(self, what: str, kind: type[B], answer: Callable[[B], Awaitable[object]]) -> None:
        self._answers[what] = kind, answer

    async def serve(self, link: PeerLink, frame: Frame, call: Call) -> _Answer:
        """Another broker asks."""
        question = frame.decoded(_Question, call.body)
        if question.what not in self._answers:
            raise Unavailable(f"This broker cannot answer '{question.what}'; it is starting, or older.")
        kind, answer = self._answers[question.what]
        whole = msgspec.msgpack.encode(await answer(frame.decoded(kind, question.body)))
        compressed = len(whole) >= COMPRESSED_FROM_BYTES
        body = await asyncio.to_thread(zlib.compress, whole, 1) if compressed else whole
        if len(whole) > WHOLE_BYTES_MAX or len(body) > ANSWER_BYTES_MAX:
            logger.warning("an answer to '%s' has %d bytes, which is too many", question.what, len(whole))
            raise Unavailable(f"The answer to '{question.what}' is too large.")
        return _Answer(body, compressed)

    # -- questions ----------------------------------------------------------------

    async def ask_all(
        self, what: str, body: object, kind: type[T], timeout_s: float = ANSWER_TIMEOUT_S
    ) -> dict[str, T]:
        names = list(self.brokers)
        asked = (self.ask(name, what, body, kind, timeout_s) for name in names)
        found = dict(zip(names, await asyncio.gather(*asked, return_exceptions=True), strict=True))
        answers: dict[str, T] = {}
        for name, answer in found.items():
            if isinstance(answer, BrokerError):
                logger.debug("the broker '%s' did not answer '%s': %s", name, what, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers[name] = answer
        return answers

    async def ask(
        self, broker: str, what: str, body: object, kind: type[T], timeout_s: float = ANSWER_TIMEOUT_S
    ) -> T:
        peer = self._cluster().peers.by_name.get(broker)
        if peer is None:
            raise StoreUnavailable(f"There is no broker '{broker}' now.")
        question = _Question(what, msgspec.Raw(msgspec.msgpack.encode(body)))
        try:
            async with asyncio.timeout(timeout_s):
                answer = await peer.call(QUESTION_CALL, question, _Answer)
                whole = answer.body
                if answer.compressed:
                    whole = await asyncio.to_thread(_decompressed, whole)
                return msgspec.msgpack.decode(whole, type=kind)
        except TimeoutError:
            raise Unavailable(f"The broker '{broker}' does not answer. Please retry.") from None
        except (msgspec.DecodeError, zlib.error) as error:
            logger.warning("the broker '%s' answers '%s' in a way that is not known: %s", broker, what, error)
            raise Unavailable(f"The answer of the broker '{broker}' cannot be read.") from None


def _decompressed(body: bytes) -> bytes:
    """As much of it as an answer may have. If there is more, it cannot be decoded."""
    return zlib.decompressobj().decompress(body, WHOLE_BYTES_MAX)
