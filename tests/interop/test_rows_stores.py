"""What the contract says of a store that is away, on 16, on 2 and on 1 partition.

Two messaging stores, of which one is a PostgreSQL that is stopped when all
entities are made. It stays away for all tests of this file but the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError

from fix_kinds import KINDS, SdkBus, close_bus, keys_for, make_bus
from fix_postgres import Postgres
from fix_rows import on_kind, use_entity
from fix_server import TROUBLE, ServerProcess, namespace


@dataclass
class Outage:
    bus: SdkBus
    keys: list[str]
    """One for each partition, in their order."""
    queues: list[str]
    """Of an unpartitioned kind one in each store, otherwise one over both."""
    away: dict[str, set[str]]
    """By queue: the keys whose partitions are in the store that is away."""

    @property
    def served(self) -> str:
        """A queue that is at least half here."""
        return next(queue for queue, away in self.away.items() if len(away) < len(self.keys))

    @property
    def hit(self) -> str:
        """A queue that is not all here."""
        return next(queue for queue, away in self.away.items() if away)


@pytest.fixture(scope="module")
def postgres_to_stop(_own_postgres: Postgres) -> Iterator[Postgres]:
    if not _own_postgres.running:
        _own_postgres.start()
    yield _own_postgres
    if not _own_postgres.running:
        _own_postgres.start()


@pytest.fixture(scope="module")
def outages(
    postgres_to_stop: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, Outage]]:
    servers = {}
    for tier in ("standard", "premium"):
        folder = tmp_path_factory.mktemp(tier)
        away = postgres_to_stop.url(postgres_to_stop.new_database(), name="away")
        stores = ["--store", f"sqlite://{folder}/here.db", "--store", away]
        servers[tier] = ServerProcess(folder, namespace({}), [*stores, "--tier", tier])
        servers[tier].start()
    outages = {}
    for kind in KINDS:
        bus = make_bus(kind, servers["premium" if kind == 2 else "standard"])
        queues = [bus.queue() for _ in range(2 if kind == 1 else 1)]
        outages[kind] = Outage(bus, keys_for(kind), queues, {})
        for queue in queues:
            fill(outages[kind], queue)
    postgres_to_stop.stop("immediate")
    for outage in outages.values():
        find_what_is_away(outage)
    yield outages
    with ThreadPoolExecutor() as pool:
        for outage in outages.values():
            close_bus(outage.bus, pool)
    for server in servers.values():
        server.stop()
        for line in server.fresh_log.splitlines():
            assert "Traceback" not in line
            assert not TROUBLE.search(line) or "away" in line, line


def fill(outage: Outage, queue: str) -> None:
    sender = outage.bus.sender(queue)
    for key in outage.keys:
        sender.send_messages(ServiceBusMessage("before", partition_key=key))


def find_what_is_away(outage: Outage) -> None:
    """Send to every partition: the broker learns of the outage by it, and so do we."""
    for queue in outage.queues:
        sender = outage.bus.sender(queue)
        away = outage.away[queue] = set()
        for key in outage.keys:
            try:
                sender.send_messages(ServiceBusMessage("found", partition_key=key))
            except OperationTimeoutError:
                away.add(key)


@pytest.fixture(params=[on_kind(kind, kind, id=f"{kind} partitions") for kind in KINDS])
def outage(outages: dict[int, Outage], request: pytest.FixtureRequest) -> Outage:
    outage = outages[request.param]
    for queue in outage.queues:
        use_entity(outage.bus.server, queue)
    return outage


@pytest.mark.row("P-02")
def test_partitions_are_spread_over_the_stores_and_an_unpartitioned_entity_is_in_one(
    outage: Outage,
) -> None:
    away = [len(each) for each in outage.away.values()]
    assert sorted(away) == ([0, 1] if outage.bus.partitions == 1 else [outage.bus.partitions // 2])


@pytest.mark.row("P-04", "P-16", "P-25", "P-27")
def test_messages_without_a_key_are_taken_and_received_with_what_the_other_store_has(
    outage: Outage,
) -> None:
    queue, bus = outage.served, outage.bus
    sender = bus.sender(queue)
    for number in range(20):
        sender.send_messages(ServiceBusMessage(f"meanwhile {number}"))
    expected = [f"meanwhile {number}" for number in range(20)]
    for key in outage.keys:
        if key not in outage.away[queue]:
            expected += ["before", "found"]
    messages = bus.take(bus.receiver(queue), len(expected))
    assert sorted(map(str, messages)) == sorted(expected)


@pytest.mark.row("P-17")
def test_a_key_whose_partition_is_away_is_refused_as_busy_and_others_go_on(
    outage: Outage,
) -> None:
    for queue, away in outage.away.items():
        sender = outage.bus.sender(queue)
        for key in (*list(away)[:2], *[key for key in outage.keys if key not in away][:2]):
            if key not in away:
                sender.send_messages(ServiceBusMessage("x", partition_key=key))
                continue
            with pytest.raises(OperationTimeoutError):
                sender.send_messages(ServiceBusMessage("x", partition_key=key))


@pytest.mark.row("P-33")
def test_the_entity_is_shown_as_limited(outage: Outage) -> None:
    for queue, away in outage.away.items():
        status = outage.bus.admin.get_queue(queue).availability_status
        assert status == ("Limited" if away else "Available")


@pytest.mark.row("P-04", "P-17", "P-32")
def test_creating_fails_cleanly_and_can_be_repeated_and_what_was_away_comes_back(
    outages: dict[int, Outage], postgres_to_stop: Postgres
) -> None:
    failed = {}
    for kind, outage in outages.items():
        admin = outage.bus.admin
        options = {} if kind == 2 else {"enable_partitioning": kind == 16}
        for attempt in range(2):  # of two unpartitioned ones, one might be in the store that is away
            name = f"new-{kind}-{attempt}"
            try:
                admin.create_queue(name, **options)
            except HttpResponseError as refusal:
                assert refusal.status_code in (409, 500, 503)
                failed[kind] = name, options
                with pytest.raises(ResourceNotFoundError):
                    admin.get_queue(name)
            else:
                # An unpartitioned one may be put where there is a store for it, and then it works.
                assert kind == 1
                outage.bus.works(name)
    postgres_to_stop.start()
    for kind, outage in outages.items():
        with ServiceBusClient.from_connection_string(
            outage.bus.server.connection_string, retry_total=20, retry_backoff_factor=0.1
        ) as patient:
            queue = outage.hit
            with patient.get_queue_sender(queue, keep_alive=0) as sender:
                for key in outage.away[queue]:
                    sender.send_messages(ServiceBusMessage("after", partition_key=key))
            assert outage.bus.admin.get_queue(queue).availability_status == "Available"
            if kind in failed:
                name, options = failed[kind]
                outage.bus.admin.create_queue(name, **options)
                outage.bus.works(name)
            receiver = outage.bus.receiver(queue)
            came: dict[str | None, list[str]] = {}
            while not all(came.get(key, [])[-1:] == ["after"] for key in outage.away[queue]):
                for message in outage.bus.take(receiver, 1):
                    came.setdefault(message.partition_key, []).append(str(message))
            # What was refused may have been stored all the same; what was there before is there.
            assert all(came[key][0] == "before" for key in outage.away[queue])
