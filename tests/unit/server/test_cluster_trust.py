"""Certificates between brokers: renewed before they end, and old and new ones are taken meanwhile."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import time

import pytest

from bendybus.errors import StoreUnavailable
from bendybus.server.cluster_trust import TLS_NAME, Lifetimes, Trust, ends_at_s, new_certificate
from bendybus.store.roster import ClusterCertificate

DAY_S = 86_400
LIFETIMES = Lifetimes(timedelta(days=30), renew_before=timedelta(days=10), shown_after=timedelta(days=1))


class Clock:
    """Of the broker that asks. OpenSSL has its own: certificates are valid for it throughout."""

    def __init__(self) -> None:
        self.now_s = time()

    def __call__(self) -> float:
        return self.now_s


class Broker:
    def __init__(self, folder: Path, name: str, clock: Clock, certificates: Sequence[ClusterCertificate]):
        (folder / name).mkdir()
        self.trust = Trust(folder / name, LIFETIMES, clock)
        self.trust.use(certificates)


class Catalog:
    def __init__(self, *certificates: ClusterCertificate) -> None:
        self.term: int | None = 1
        self.certificates = list(certificates)
        self.added = asyncio.Event()
        self.is_away = False

    def add_certificate(self, made: ClusterCertificate) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        self.certificates = [*self.certificates, made]


def certificate(days: float = 30) -> ClusterCertificate:
    return ClusterCertificate(*new_certificate(timedelta(days=days)))


async def shown_to(caller: Broker, called: Broker) -> str | None:
    """The certificate that is shown to a caller; None if one of the two refuses the other."""
    done = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(b"x")
            await writer.drain()
            await reader.read()
        writer.close()
        done.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=called.trust.server)
    try:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=caller.trust.client, server_hostname=TLS_NAME
        )
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        # With TLS 1.3 the caller learns only now whether its own certificate was taken.
        taken = await reader.read(1)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        await done.wait()
        return ssl.DER_cert_to_PEM_cert(shown) if taken else None
    except OSError:
        return None
    finally:
        server.close()


@pytest.mark.row("N-09")
async def test_the_next_certificate_is_made_in_time_and_only_one(tmp_path: Path) -> None:
    clock, first = Clock(), certificate()
    trust = Broker(tmp_path, "a", clock, [first]).trust
    clock.now_s += 19 * DAY_S
    assert trust.next_certificate([first]) is None
    clock.now_s += 2 * DAY_S
    second = trust.next_certificate([first])
    assert second is not None
    assert second.shown_from_s == clock.now_s + DAY_S
    assert second.shown_from_s < ends_at_s(first)
    assert trust.next_certificate([first, second]) is None


@pytest.mark.row("N-09")
async def test_brokers_that_know_of_a_new_certificate_and_brokers_that_do_not_yet_reach_each_other(
    tmp_path: Path,
) -> None:
    clock, first = Clock(), certificate()
    second = ClusterCertificate(*new_certificate(timedelta(days=60)), clock.now_s + DAY_S)
    one, other = (Broker(tmp_path, name, clock, [first]) for name in "ab")
    assert await shown_to(one, other) == first.certificate
    # Read, and not shown yet.
    other.trust.use([first, second])
    assert await shown_to(one, other) == await shown_to(other, one) == first.certificate
    one.trust.use([first, second])
    clock.now_s += 2 * DAY_S
    # One of them looks earlier than the other.
    other.trust.use([first, second])
    assert await shown_to(one, other) == second.certificate
    assert await shown_to(other, one) == first.certificate
    one.trust.use([first, second])
    assert await shown_to(one, other) == await shown_to(other, one) == second.certificate


@pytest.mark.row("N-09")
async def test_a_certificate_of_somebody_else_or_one_that_has_ended_is_refused(tmp_path: Path) -> None:
    clock, ours = Clock(), certificate()
    one = Broker(tmp_path, "a", clock, [ours])
    stranger = Broker(tmp_path, "b", clock, [certificate()])
    assert await shown_to(one, stranger) is None
    assert await shown_to(stranger, one) is None
    ended = certificate(days=-0.01)
    late = Broker(tmp_path, "c", clock, [ended])
    one.trust.use([ended, ours])
    assert await shown_to(late, one) is None


async def test_if_the_last_certificate_has_ended_the_next_one_is_shown_at_once(tmp_path: Path) -> None:
    clock, ended = Clock(), certificate(days=-0.01)
    trust = Broker(tmp_path, "a", clock, [ended]).trust
    made = trust.next_certificate([ended])
    assert made is not None
    one, other = (Broker(tmp_path, name, clock, [ended, made]) for name in "bc")
    assert await shown_to(one, other) == made.certificate


@pytest.mark.row("N-09")
async def test_a_certificate_that_could_not_be_loaded_is_loaded_later(tmp_path: Path) -> None:
    clock, first = Clock(), certificate()
    second = ClusterCertificate(*new_certificate(timedelta(days=60)), clock.now_s + DAY_S)
    one, other = (Broker(tmp_path, name, clock, [first, second]) for name in "ab")
    clock.now_s += 2 * DAY_S
    # As when the disk is full.
    (tmp_path / "b").rename(tmp_path / "away")
    with pytest.raises(OSError):
        other.trust.use([first, second])
    (tmp_path / "away").rename(tmp_path / "b")

    other.trust.use([first, second])

    assert await shown_to(one, other) == second.certificate


@pytest.mark.row("N-09")
async def test_the_broker_that_leads_adds_a_certificate_and_others_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[asyncio.Future[None]] = []

    async def look_again(delay: float) -> None:
        looks.append(asyncio.get_running_loop().create_future())
        await looks[-1]

    clock, first = Clock(), certificate()
    catalog = Catalog(first)
    one, other = (Broker(tmp_path, name, clock, [first]) for name in "ab")
    keeping = asyncio.create_task(one.trust.keep(catalog))
    monkeypatch.setattr("bendybus.server.cluster_trust._pause", look_again)

    async def next_look() -> None:
        count = len(looks)
        if looks:
            looks[-1].set_result(None)
        while len(looks) == count:
            await asyncio.sleep(0)

    clock.now_s += 21 * DAY_S
    catalog.term = None
    await next_look()
    assert catalog.certificates == [first], "it does not lead"
    catalog.term, catalog.is_away = 2, True
    await next_look()
    assert "is not renewed yet: away" in caplog.text
    catalog.is_away = False
    await next_look()
    assert len(catalog.certificates) == 2
    other.trust.use(catalog.certificates)
    assert await shown_to(other, one) == first.certificate
    clock.now_s += 2 * DAY_S
    await next_look()
    assert await shown_to(other, one) == catalog.certificates[1].certificate
    keeping.cancel()
