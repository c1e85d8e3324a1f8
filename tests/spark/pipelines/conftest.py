"""Namespaces for pipelines, and short cuts to what they leave behind."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pyspark.sql import SparkSession

from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ReceivedMessage, encode
from bendybus.errors import EntityNotFound
from bendybus.management.client import ManagementClient
from bendybus.management.filter_rules import RULE_DESCRIPTION, rule_elements, sql_elements
from bendybus.management.properties import QUEUE, SUBSCRIPTION, TOPIC, new_elements, subscription_path
from fix_server import ServerProcess
from pyspark_servicebus.pipelines import Bus, Pipeline, Progress, Run, Summary

MakeQueue: TypeAlias = Callable[..., str]
MakeTopic: TypeAlias = Callable[[Mapping[str, Mapping[str, Any]]], str]
Contents: TypeAlias = Callable[..., list[ReceivedMessage]]
SendKeyed: TypeAlias = Callable[..., None]


class Interrupted(Exception):
    """Stands for a crash: nothing after it is done, and nothing is put in order."""


def interrupted(pipeline: Pipeline, spark: SparkSession, at: int) -> bool:
    """Run it until it tells of its progress for the `at`-th time; False if it ended before."""
    told = 0

    def tell(progress: Progress) -> None:
        nonlocal told
        told += 1
        if told == at:
            raise Interrupted

    try:
        pipeline.run(spark, Run(tell=tell))
    except Interrupted:
        return True
    return False


def finish(pipeline: Pipeline, spark: SparkSession) -> Summary:
    summary = pipeline.run(spark, Run())
    assert summary.outcome == "finished"
    return summary


def forget_last_commit(checkpoint: Path) -> None:
    """As after a crash between what the sink did for a batch and Spark's note of it."""
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink()


@pytest.fixture
def bus(server: ServerProcess) -> Bus:
    return Bus(server.connection_string)


@pytest.fixture
def make_queue(server: ServerProcess) -> Iterator[MakeQueue]:
    """A queue for this test alone: `make_queue(partitioned=False, RequiresSession=True)`."""
    with ManagementClient(ConnectionString.parse(server.connection_string)) as management:
        made: list[str] = []

        def make(*, partitioned: bool = True, **properties: object) -> str:
            name = f"p-{uuid.uuid4().hex[:8]}"
            made.append(name)
            described = {"EnablePartitioning": partitioned, **properties}
            management.create(name, QUEUE.element, new_elements(QUEUE, described))
            return name

        yield make
    # Anew, since nobody has used the first connection for a while.
    with ManagementClient(ConnectionString.parse(server.connection_string)) as management:
        for name in made:
            for each in (name, f"{name}-new"):
                with suppress(EntityNotFound):
                    management.delete(each)


@pytest.fixture
def make_topic(server: ServerProcess) -> Iterator[MakeTopic]:
    """A partitioned topic for this test alone, by its subscriptions: properties, and rules with actions."""
    made: list[str] = []

    def make(subscriptions: Mapping[str, Mapping[str, Any]]) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        made.append(name)
        with ManagementClient(ConnectionString.parse(server.connection_string)) as management:
            management.create(name, TOPIC.element, new_elements(TOPIC, {"EnablePartitioning": True}))
            for each, properties in subscriptions.items():
                path = subscription_path(name, each)
                described = dict(properties)
                rules = described.pop("Rules", [])
                management.create(path, SUBSCRIPTION.element, new_elements(SUBSCRIPTION, described))
                for rule, condition, action in rules:
                    elements = rule_elements(rule, sql_elements("SqlFilter", condition), action)
                    management.create(f"{path}/Rules/{rule}", RULE_DESCRIPTION, elements)
                if rules:
                    management.delete(f"{path}/Rules/$Default")
        return name

    yield make
    with ManagementClient(ConnectionString.parse(server.connection_string)) as management:
        for name in made:
            for each in (name, f"{name}-new"):
                with suppress(EntityNotFound):
                    management.delete(each)


@pytest.fixture
def contents(client: BusClient) -> Contents:
    """All messages of an entity in the order of their sequence numbers; nothing is taken."""

    def peek(entity: str) -> list[ReceivedMessage]:
        from bendybus.amqp.types import Int

        found: list[ReceivedMessage] = []
        while True:
            first = found[-1].sequence_number + 1 if found else 0
            body: dict[str, Any] = {"from-sequence-number": first, "message-count": Int(250)}
            answer = client.management(entity).request("com.microsoft:peek-message", body)
            if answer is None:
                return found
            found += [ReceivedMessage(bytes(each["message"])) for each in answer["messages"]]

    return peek


@pytest.fixture
def send_keyed(client: BusClient) -> SendKeyed:
    """So many messages, numbered, over four keys; with everything that a copy has to keep."""

    def send(entity: str, count: int, first: int = 0, *, session: bool = False) -> None:
        sender = client.sender(entity)
        for number in range(first, first + count):
            key = f"k{number % 4}"
            named = {"session_id": key} if session else {"partition_key": key}
            message = encode(
                b"%d" % number,
                message_id=f"m{number}",
                subject="order",
                application_properties={"number": number, "text": "five", "yes": True},
                **named,
            )
            sender.post([message], key)
        sender.flush()

    return send


def by_key(messages: list[ReceivedMessage]) -> dict[str, list[int]]:
    """The numbers that `send_keyed` gave, in the order in which each key has them."""
    found: dict[str, list[int]] = {}
    for message in messages:
        key = message.session_id or message.partition_key or ""
        found.setdefault(key, []).append(int(message.body))
    return found


def expected(count: int, first: int = 0) -> dict[str, list[int]]:
    return {f"k{key}": [n for n in range(first, first + count) if n % 4 == key] for key in range(4)}
