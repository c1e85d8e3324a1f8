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
from azure.servicebus.exceptions import ServiceBusServerBusyError

from bendybus.domain.routing import partition_of as partition_of_key
from fix_kinds import KINDS, PATIENCE_S, Stand, close_stand, make_stand, partition_of
from fix_postgres import Postgres
from fix_server import TROUBLE, ServerProcess, namespace

KEYS = [f"key-{number}" for number in range(60)]


@dataclass
class Outage:
    stand: Stand
    queues: list[str]
    """Of an unpartitioned kind one in each store, otherwise one over both."""
    away: dict[str, set[int]]
    """By queue: the partitions that are in the store that is away."""

    @property
    def queue(self) -> str:
        return self.queues[0]

    def key(self, *, here: bool) -> str:
        """One whose partition is, or is not, here."""
        return next(key for key in KEYS if (self.partition(key) in self.away[self.queue]) is not here)

    def partition(self, key: str) -> int:
        return partition_of_key(key, self.stand.partitions)


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
        stand = make_stand(kind, servers["premium" if kind == 2 else "standard"])
        queues = [stand.queue() for _ in range(2 if kind == 1 else 1)]
        for queue in queues:
            fill(stand, queue)
        outages[kind] = Outage(stand, queues, {})
    postgres_to_stop.stop("immediate")
    for outage in outages.values():
        find_what_is_away(outage)
    yield outages
    with ThreadPoolExecutor() as pool:
        for outage in outages.values():
            close_stand(outage.stand, pool)
    for server in servers.values():
        server.stop()
        for line in server.fresh_log.splitlines():
            assert "Traceback" not in line
            assert not TROUBLE.search(line) or "away" in line, line


def fill(stand: Stand, queue: str) -> None:
    sender = stand.sender(queue)
    for key in KEYS:
        sender.send_messages(ServiceBusMessage("before", partition_key=key))


def find_what_is_away(outage: Outage) -> None:
    """Send to every partition: the broker learns of the outage by it, and so do we."""
    for queue in outage.queues:
        away = set()
        for partition in range(outage.stand.partitions):
            key = next(key for key in KEYS if outage.partition(key) == partition)
            try:
                outage.stand.sender(queue).send_messages(ServiceBusMessage("found", partition_key=key))
            except ServiceBusServerBusyError:
                away.add(partition)
        outage.away[queue] = away


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind} partitions")
def outage(outages: dict[int, Outage], request: pytest.FixtureRequest) -> Outage:
    return outages[request.param]


def on_each_kind_of_outage(outage: Outage) -> Stand:
    return outage.stand


def test_partitions_are_spread_over_the_stores_and_an_unpartitioned_entity_is_in_one(
    outage: Outage,
) -> None:  # P-02 P-03
    away = [len(each) for each in outage.away.values()]
    assert sorted(away) == ([0, 1] if outage.stand.partitions == 1 else [outage.stand.partitions // 2])


def test_messages_without_a_key_are_taken_all_the_same(outage: Outage) -> None:  # P-04 P-16
    queue = next(queue for queue, away in outage.away.items() if len(away) < outage.stand.partitions)
    sender = outage.stand.sender(queue)
    for number in range(20):
        sender.send_messages(ServiceBusMessage(f"meanwhile {number}"))
    receiver = outage.stand.receiver(queue)
    taken = set()
    while len(taken) < 20:
        taken |= {
            str(message) for message in outage.stand.take(receiver, 1) if str(message).startswith("meanwhile")
        }


def test_a_key_whose_partition_is_away_is_refused_as_busy_and_others_go_on(
    outage: Outage,
) -> None:  # P-17
    stand = outage.stand
    if stand.partitions == 1:
        lost = next(queue for queue, away in outage.away.items() if away)
        with pytest.raises(ServiceBusServerBusyError):
            stand.sender(lost).send_messages(ServiceBusMessage("x", partition_key="k"))
        here = next(queue for queue, away in outage.away.items() if not away)
        stand.sender(here).send_messages(ServiceBusMessage("x", partition_key="k"))
        return
    sender = stand.sender(outage.queue)
    for _ in range(2):
        with pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("x", partition_key=outage.key(here=False)))
        sender.send_messages(ServiceBusMessage("x", partition_key=outage.key(here=True)))


def test_what_the_other_store_has_is_received_without_delay(outage: Outage) -> None:  # P-27 P-25
    queue = next(queue for queue, away in outage.away.items() if len(away) < outage.stand.partitions)
    here = [key for key in KEYS if outage.partition(key) not in outage.away[queue]]
    receiver = outage.stand.receiver(queue)
    seen: set[str | None] = set()
    while seen < set(here):
        for message in outage.stand.take(receiver, 1):
            assert partition_of(message) not in outage.away[queue]
            seen |= {message.partition_key} if str(message) == "before" else set()


def test_the_entity_is_shown_as_limited(outage: Outage) -> None:  # P-33
    for queue, away in outage.away.items():
        status = outage.stand.admin.get_queue(queue).availability_status
        assert status == ("Limited" if away else "Available")


def test_creating_fails_cleanly_and_can_be_repeated_and_what_was_away_comes_back(
    outages: dict[int, Outage], postgres_to_stop: Postgres
) -> None:  # P-32 P-04 P-17
    failed = {}
    for kind, outage in outages.items():
        admin = outage.stand.admin
        options = {} if kind == 2 else {"enable_partitioning": kind == 16}
        for attempt in range(2):  # of two unpartitioned ones, one would be in the store that is away
            name = f"new-{kind}-{attempt}"
            try:
                admin.create_queue(name, **options)
            except HttpResponseError as refusal:
                assert refusal.status_code in (409, 500, 503)
                failed[kind] = name, options
                with pytest.raises(ResourceNotFoundError):
                    admin.get_queue(name)
    assert failed.keys() == set(KINDS)
    postgres_to_stop.start()
    for kind, outage in outages.items():
        with ServiceBusClient.from_connection_string(
            outage.stand.server.connection_string, retry_total=20, retry_backoff_factor=0.1
        ) as patient:
            for queue, away in outage.away.items():
                for partition in away:
                    key = next(key for key in KEYS if outage.partition(key) == partition)
                    with patient.get_queue_sender(queue) as sender:
                        sender.send_messages(ServiceBusMessage("after", partition_key=key))
                assert outage.stand.admin.get_queue(queue).availability_status == "Available"
            name, options = failed[kind]
            outage.stand.admin.create_queue(name, **options)
            outage.stand.works(name)
            lost = next(queue for queue, away in outage.away.items() if away)
            with patient.get_queue_receiver(lost) as receiver:
                kept = {key for key in KEYS if outage.partition(key) in outage.away[lost]}
                while kept:
                    messages = receiver.receive_messages(100, max_wait_time=PATIENCE_S)
                    assert messages, kept
                    for message in messages:
                        receiver.complete_message(message)
                        kept -= {message.partition_key} if str(message) == "before" else set()
