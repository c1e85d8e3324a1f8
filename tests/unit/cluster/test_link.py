"""Two brokers and the connection between them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bendybus.cluster import link as link_module
from bendybus.cluster.frames import Frame, FrameError, refusal_of
from bendybus.cluster.identity import Identity
from bendybus.cluster.items import Call, Hello, Item, Payloads, Ping, Returned
from bendybus.cluster.link import PeerLink
from bendybus.cluster.link_protocol import LinkProtocol
from bendybus.domain.commands import Enqueued
from bendybus.errors import BrokerError, InvalidOperation, ServerBusy, StoreUnavailable
from bendybus.names import SequenceNumber
from fix_async import until

SECRET = b"s" * 32
A, B = Identity("cluster", "a", SECRET), Identity("cluster", "b", SECRET)


class User:
    """A broker that answers calls with their own bodies."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_lost = asyncio.Event()
        self.frames: list[list[str]] = [[]]
        self.answers = True
        self.says_first: list[str] = []

    def opened(self, link: PeerLink) -> None:
        self.is_open.set()
        for name in self.says_first:
            link.request(
                lambda request, name=name: Call(request, name, link.writer.encoded(None)),
                lambda frame, item: None,
                lambda answer: None,
            )

    def received(self, link: PeerLink, frame: Frame, item: Item) -> None:
        assert isinstance(item, Call)
        self.frames[-1].append(item.name)
        if item.name == "refuse":
            link.send(refusal_of(item.id, InvalidOperation("no")))
        elif self.answers:
            link.send(Returned(item.id, item.body))

    def frame_ended(self, link: PeerLink) -> None:
        self.frames.append([])

    def lost(self, link: PeerLink) -> None:
        self.is_lost.set()


class Pair:
    def __init__(self) -> None:
        self.users = User(), User()
        self.links: tuple[PeerLink, PeerLink]

    async def open(self, first: Identity = A, second: Identity = B, *, expected: str | None = None) -> None:
        loop = asyncio.get_running_loop()
        one, other = socket.socketpair()
        self.links = PeerLink(first, self.users[0], expected), PeerLink(second, self.users[1])
        await loop.create_connection(lambda: LinkProtocol(self.links[0]), sock=one)
        await loop.create_connection(lambda: LinkProtocol(self.links[1]), sock=other)

    async def opened(self) -> None:
        for user in self.users:
            await user.is_open.wait()

    async def closed(self) -> None:
        for link in self.links:
            await link.closed

    async def close(self) -> None:
        for link in self.links:
            link.close("the test is over")
        await self.closed()


@pytest.fixture
def pair(loop_runner: asyncio.Runner) -> Iterator[Pair]:
    pair = Pair()
    yield pair
    loop_runner.run(pair.close())


def call(link: PeerLink, name: str, body: object = None) -> asyncio.Future[object]:
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def done(result: object) -> None:
        if isinstance(result, BrokerError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    link.request(
        lambda request: Call(request, name, link.writer.encoded(body)),
        lambda frame, item: frame.decoded(Any, item.body),
        done,
    )
    return answer


async def test_both_sides_ask_and_answer(pair: Pair) -> None:
    await pair.open(expected="b")
    await pair.opened()

    answers = await asyncio.gather(call(pair.links[0], "x", [1, "two"]), call(pair.links[1], "y", b"three"))

    assert answers == [[1, "two"], b"three"]
    assert [link.peer for link in pair.links] == ["b", "a"]


async def test_the_system_buffers_whole_frames_for_a_broker_that_is_busy(pair: Pair) -> None:
    await pair.open()
    await pair.opened()
    system_max = int(Path("/proc/sys/net/core/wmem_max").read_text())

    connected = pair.links[0]._transport.get_extra_info("socket")
    # Linux doubles the number, for what it needs itself.
    wanted = 2 * min(link_module.BUFFER_BYTES, system_max)
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == wanted


class Written(asyncio.Transport):
    """A transport that keeps what is written. `encrypted`: as if it were TLS."""

    def __init__(self, encrypted: bool) -> None:
        super().__init__({"ssl_object": object()} if encrypted else None)
        self.calls: list[list[bytes]] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append([bytes(data)])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.calls.append([bytes(data) for data in list_of_data])

    def abort(self) -> None: ...


@pytest.mark.parametrize("encrypted", [True, False])
async def test_a_frame_is_one_buffer_where_each_would_be_a_record(encrypted: bool) -> None:
    transport = Written(encrypted)
    link = PeerLink(A, User())
    link.connection_made(transport)
    for text in (b"one", b"two"):
        link.send(Payloads(1, [link.writer.add_payload(text)]))

    await until(lambda: bool(transport.calls))
    link.close("the test is over")

    (pieces,) = transport.calls
    assert len(pieces) == (1 if encrypted else 3)
    assert b"".join(pieces).endswith(b"onetwo")


async def test_a_side_may_say_much_as_soon_as_the_other_has_proved_itself(pair: Pair) -> None:
    for user in pair.users:
        user.says_first = [f"{number:0>1000}" for number in range(10)]

    await pair.open()
    await pair.opened()

    for link, user in zip(pair.links, pair.users, strict=True):
        await call(link, "x")
        assert link.is_open
        assert user.says_first[-1] in [name for frame in pair.users[0].frames for name in frame]


async def test_what_is_said_in_one_turn_is_one_frame(pair: Pair) -> None:
    await pair.open()
    await pair.opened()

    await asyncio.gather(*[call(pair.links[0], name) for name in "abc"])

    assert ["a", "b", "c"] in pair.users[1].frames


async def test_an_error_is_raised_at_the_side_that_asked(pair: Pair) -> None:
    await pair.open()
    await pair.opened()

    with pytest.raises(InvalidOperation, match="no"):
        await call(pair.links[0], "refuse")


async def test_requests_are_answered_when_the_link_is_lost(pair: Pair) -> None:
    await pair.open()
    await pair.opened()
    pair.users[1].answers = False
    waiting = call(pair.links[0], "x")

    pair.links[1].close("killed")

    with pytest.raises(StoreUnavailable):
        await waiting
    await pair.users[0].is_lost.wait()
    with pytest.raises(StoreUnavailable):
        await call(pair.links[0], "y")


@pytest.mark.parametrize(
    "stranger",
    [
        replace(B, secret=b"guessed" * 4),
        replace(B, cluster="another"),
        replace(B, broker="a"),
    ],
    ids=["wrong secret", "another cluster", "the same name"],
)
async def test_a_broker_that_is_not_a_member_is_refused(pair: Pair, stranger: Identity) -> None:
    await pair.open(A, stranger)

    await pair.closed()

    assert not pair.users[0].is_open.is_set()
    assert not pair.users[1].is_open.is_set()


async def test_another_broker_than_was_called_is_refused(pair: Pair) -> None:
    await pair.open(expected="c")

    await pair.closed()

    assert not pair.users[0].is_open.is_set()


async def test_a_broker_without_a_common_version_is_refused() -> None:
    link = PeerLink(A, User())

    with pytest.raises(FrameError, match="versions 3 to 4"):
        link._greet(Hello((3, 4), "cluster", "b", "i", b"c" * 16))


@pytest.mark.parametrize(("newest", "joins"), [(1, False), (2, True), (3, True)])
async def test_a_broker_is_sent_only_what_its_version_knows(pair: Pair, newest: int, joins: bool) -> None:
    await pair.open()

    pair.links[0]._greet(Hello((1, newest), "cluster", "b", "i", b"c" * 16))

    assert pair.links[0].joins_items is joins


async def test_answers_of_one_turn_are_one_item(pair: Pair) -> None:
    await pair.open()
    await pair.opened()
    asking, asked = pair.links
    pair.users[1].answers = False
    answers: list[object] = []
    for _ in range(3):
        asking.request(
            lambda request: Call(request, "x", asking.writer.encoded(None)), _never, answers.append
        )
    await until(lambda: ["x"] * 3 in pair.users[1].frames)

    for request in (1, 3, 2):
        asked.send_stored(request, Enqueued(SequenceNumber(request * 10), request))
    assert len(asked.writer._items) == 1
    await until(lambda: len(answers) == 3)

    assert answers == [Enqueued(10, 1), Enqueued(30, 3), Enqueued(20, 2)]


async def test_an_answer_to_a_request_that_was_not_made_ends_the_connection(pair: Pair) -> None:
    await pair.open()
    await pair.opened()

    pair.links[1].send_stored(7, Enqueued(SequenceNumber(1), 1))

    await pair.closed()


async def test_a_request_is_answered_though_its_answer_cannot_be_read(pair: Pair) -> None:
    await pair.open()
    await pair.opened()
    link = pair.links[0]
    answers: list[object] = []

    link.request(
        lambda request: Call(request, "x", link.writer.encoded("not a number")),
        lambda frame, item: frame.decoded(int, item.body),
        answers.append,
    )

    await pair.closed()
    assert [type(each) for each in answers] == [StoreUnavailable]


def _never(frame: Frame, item: Item) -> object:
    raise AssertionError("a reply that is stored needs no reading")


async def test_nothing_is_served_before_the_proof(pair: Pair) -> None:
    await pair.open()
    pair.links[0].writer.add(Call(1, "x", pair.links[0].writer.encoded(None)))

    await pair.closed()

    assert pair.users[1].frames == [[]]


async def test_a_side_that_does_not_answer_takes_no_more_than_its_share(pair: Pair, monkeypatch) -> None:
    monkeypatch.setattr(link_module, "UNANSWERED_MAX", 1000)
    await pair.open()
    await pair.opened()
    pair.users[1].answers = False
    link = pair.links[0]
    refused: list[object] = []

    def ask() -> None:
        link.request(
            lambda request: Call(request, "x", link.writer.encoded(link.writer.add_payload(b"x" * 600))),
            lambda frame, item: item,
            refused.append,
        )

    ask()
    ask()
    assert not refused
    ask()

    assert isinstance(refused[0], ServerBusy)


@pytest.mark.parametrize(("count", "size"), [(20, 1 << 20), (1, 20 << 20)], ids=["many", "one"])
async def test_what_is_not_a_payload_may_be_large_too(pair: Pair, count: int, size: int) -> None:
    """Such as session states, which may be as large as messages."""
    await pair.open()
    await pair.opened()

    sent = [bytes([number]) * size for number in range(count)]
    assert await asyncio.gather(*[call(pair.links[0], "x", each) for each in sent]) == sent
    assert all(link.is_open for link in pair.links)


async def test_what_is_not_a_payload_counts_until_it_is_answered(pair: Pair, monkeypatch) -> None:
    monkeypatch.setattr(link_module, "UNANSWERED_MAX", 1000)
    await pair.open()
    await pair.opened()
    pair.users[1].answers = False
    waiting = call(pair.links[0], "x", b"x" * 1001)

    with pytest.raises(ServerBusy):
        await call(pair.links[0], "x")

    pair.links[0].close("the test is over")
    with pytest.raises(StoreUnavailable):
        await waiting


async def test_a_side_that_says_nothing_is_taken_for_dead(pair: Pair, monkeypatch) -> None:
    monkeypatch.setattr(link_module, "PING_S", 0.001)
    await pair.open()
    await pair.opened()
    pair.links[1]._transport.pause_reading()
    pair.links[1]._pinging.cancel()

    await pair.users[0].is_lost.wait()

    assert not pair.links[0].is_open


async def test_a_frame_that_is_malformed_ends_the_link(pair: Pair) -> None:
    await pair.open()
    await pair.opened()

    pair.links[0]._transport.write(b"not a frame of a broker")

    await pair.users[1].is_lost.wait()


async def test_pings_keep_a_quiet_link(pair: Pair, monkeypatch) -> None:
    monkeypatch.setattr(link_module, "PING_S", 0.001)
    await pair.open()
    await pair.opened()

    for _ in range(20):
        pair.links[0].send(Ping())
        await call(pair.links[0], "x")

    assert pair.links[0].is_open
