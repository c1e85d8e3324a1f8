"""What a subscription costs: one topic, a hundred subscriptions with distinct SQL filters.

    python tests/bench/topics.py [--subscriptions 100] [--messages 2000] [--profile]

The broker runs in this process on SQLite stores, without sockets: what is measured is matching,
copying and committing. Three cases: no subscription at all to compare with; every message wanted by
one subscription; every message wanted by all. For the last, the bytes in the store say whether the
body is kept once.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bendybus.amqp.message import Properties, encode_message
from bendybus.broker.broker import Broker
from bendybus.broker.clock import now
from bendybus.broker.topic import Topic
from bendybus.domain.commands import Enqueue
from bendybus.domain.filters import RuleDescription, SqlFilter
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.envelope import admit
from bendybus.envelope.contents import AmqpContents
from bendybus.names import EntityPath
from bendybus.store.sqlite.catalog import SqliteCatalog
from bendybus.store.sqlite.store import SqliteStore

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bench" / "topics"
BODY_BYTES = 1024
# As many as a busy sender's socket brings in one read.
BATCH = 50


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    conditions: Sequence[str]


@dataclass(frozen=True, slots=True)
class Result:
    per_message_us: float
    copies: int
    store_bytes: int


async def measure(case: Case, messages: int, profile: cProfile.Profile | None) -> Result:
    shutil.rmtree(CACHE, ignore_errors=True)
    CACHE.mkdir(parents=True)
    catalog = SqliteCatalog(CACHE / "catalog.db")
    catalog.open()
    store = SqliteStore(CACHE / "store.db")
    store.open()
    broker = Broker(catalog, [store], contents=AmqpContents())
    broker.start()
    topic = await broker.topics.create(TopicDescription(EntityPath("news")))
    for number, condition in enumerate(case.conditions):
        rules = (RuleDescription("r", SqlFilter(condition)),)
        await broker.topics.create_subscription(SubscriptionDescription.of("news", f"s{number}", rules=rules))
    await publish(topic, BATCH)
    if profile is not None:
        profile.enable()
    began = time.perf_counter()
    await publish(topic, messages)
    took_s = time.perf_counter() - began
    if profile is not None:
        profile.disable()
    await broker.drain()
    held = sum(
        len(list(host.partition.confirmed()))
        for each in topic.subscriptions
        for host in each.hosts
        if host.partition
    )
    await broker.stop()
    store.close()
    catalog.close()
    return Result(took_s / messages * 1e6, held, (CACHE / "store.db").stat().st_size)


async def publish(topic: Topic, count: int) -> None:
    """Batches, two of them under way at a time: one is matched while the other is committed."""
    under_way: list[asyncio.Task[object]] = []
    for first in range(0, count, BATCH):
        batch = [
            admit(_message(number), now(), topic.description)[0] for number in range(first, first + BATCH)
        ]
        under_way.append(asyncio.create_task(topic.hosts[0].ask(Enqueue(batch))))
        if len(under_way) > 1:
            await under_way.pop(0)
    await asyncio.gather(*under_way)


def _message(number: int) -> bytes:
    return encode_message(
        properties=Properties(message_id=str(number)),
        application_properties={"n": number, "colour": "red", "price": 9.5},
        data=bytes(BODY_BYTES),
    )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--subscriptions", type=int, default=100)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--profile", action="store_true", help="where the time of the last two goes")
    options = parser.parse_args()
    count = options.subscriptions
    cases = [
        Case("no subscription", []),
        Case("each message for one", [f"n % {count} = {i} AND colour = 'red'" for i in range(count)]),
        Case(
            "each message for all", [f"n >= 0 AND colour = 'red' AND price < {i + 10}" for i in range(count)]
        ),
    ]
    say(f"{count} subscriptions with distinct SQL filters, {options.messages} messages of {BODY_BYTES} bytes")
    say(f"{'':22}{'us/message':>12}{'us/subscription':>17}{'copies':>9}{'bytes/message':>15}")
    base_us = 0.0
    for case in cases:
        profile = cProfile.Profile() if options.profile and case.conditions else None
        result = asyncio.run(measure(case, options.messages, profile))
        base_us = base_us or result.per_message_us
        each_us = (result.per_message_us - base_us) / (len(case.conditions) or 1)
        per_message = result.store_bytes / (options.messages + BATCH)
        say(f"{case.name:22}{result.per_message_us:12.1f}{each_us:17.2f}{result.copies:9}{per_message:15.0f}")
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)
    shutil.rmtree(CACHE, ignore_errors=True)


if __name__ == "__main__":
    main()
