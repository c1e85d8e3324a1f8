"""Batches read by a real Spark from a real server process."""

from __future__ import annotations

import datetime

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql import functions as f

from bendybus.client import BusClient, ClientSettings, encode
from fix_kinds import keys_for
from fix_server import Kind
from spark.conftest import numbers


@pytest.mark.row("S-01")
def test_a_message_of_the_sdk_becomes_a_row_with_all_it_has(server, new_queue, read):
    queue = new_queue(Kind.PARTITIONED)
    message = ServiceBusMessage(
        b"hello",
        message_id="m1",
        partition_key="ada",
        subject="greeting",
        correlation_id="c1",
        content_type="text/plain",
        to="there",
        reply_to="here",
        time_to_live=datetime.timedelta(minutes=10),
        application_properties={"text": "t", "number": 7, "flag": True},
    )
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as sdk,
        sdk.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(message)
    (row,) = read(queue).collect()
    assert bytes(row.body) == b"hello"
    assert (row.message_id, row.partition_key, row.subject, row.correlation_id) == (
        "m1",
        "ada",
        "greeting",
        "c1",
    )
    assert (row.content_type, row.to, row.reply_to, row.session_id) == (
        "text/plain",
        "there",
        "here",
        None,
    )
    assert row.time_to_live_ms == 600_000
    assert row.application_properties == {"text": "t", "number": "7", "flag": "true"}
    assert row.sequence_number == row.partition << 48 | 1
    assert row.enqueued_sequence_number == row.sequence_number
    assert (row.state, row.delivery_count) == ("active", 0)
    age = datetime.datetime.now() - row.enqueued_time
    assert abs(age) < datetime.timedelta(hours=25)


@pytest.mark.row("S-01")
def test_browsing_reads_everything_and_takes_nothing(read, new_queue, fill, client, kind):
    queue = new_queue(kind)
    fill(queue, 1000)
    rows = read(queue).select("body", "sequence_number").collect()
    assert sorted(int(row.body) for row in rows) == [*range(1000)]
    assert len({row.sequence_number for row in rows}) == 1000
    assert read(queue).count() == 1000
    assert len(client.receiver(queue, deletes=True).receive(1000)) > 0


def test_ranges_are_given_as_kafka_has_them(read, new_queue, fill):
    queue = new_queue(Kind.UNPARTITIONED)
    fill(queue, 20, keys=1)
    assert numbers(read(queue, startingOffsets='{"0": 6}')) == [*range(5, 20)]
    assert numbers(read(queue, startingOffsets='{"0": 6}', endingOffsets='{"0": 11}')) == [*range(5, 10)]
    assert numbers(read(queue, startingOffsets="latest")) == []
    assert numbers(read(queue, startingOffsets='{"0": -2}', endingOffsets='{"0": -1}')) == [*range(20)]
    assert numbers(read(queue, startingOffsets='{"0": 999}')) == []


def test_states_are_picked_and_told(read, new_queue, client):
    queue = new_queue(Kind.UNPARTITIONED)
    tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    later = encode(b"3", scheduled_enqueue_time_ms=int(tomorrow.timestamp() * 1000))
    client.sender(queue).send([encode(b"1"), encode(b"2")])
    client.sender(queue).send([later])
    receiver = client.receiver(queue)
    (first,) = receiver.receive(1)
    receiver.defer([first])
    assert numbers(read(queue)) == [2]
    assert numbers(read(queue, states="deferred")) == [1]
    rows = read(queue, states="active,deferred,scheduled").collect()
    assert [(bytes(row.body), row.state) for row in sorted(rows, key=lambda row: row.sequence_number)] == [
        (b"1", "deferred"),
        (b"2", "active"),
        (b"3", "scheduled"),
    ]
    (scheduled,) = [row for row in rows if row.state == "scheduled"]
    assert scheduled.scheduled_enqueue_time is not None


def test_dead_letters_are_a_source_with_their_reasons(read, new_queue, client, kind):
    queue = new_queue(kind)
    client.sender(queue).send([encode(b"1")])
    receiver = client.receiver(queue)
    (message,) = receiver.receive(1)
    receiver.dead_letter([message], "bad", "because")
    (row,) = read(f"{queue}/$deadletterqueue").collect()
    assert (row.dead_letter_reason, row.dead_letter_error_description) == ("bad", "because")
    assert read(queue).count() == 0


def test_columns_that_cost_can_be_left_out(read, new_queue, fill):
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 10)
    rows = read(queue, includeBody="false", includeProperties="false")
    assert not {"body", "application_properties", "amqp_message"} & set(rows.columns)
    assert rows.count() == 10
    assert "amqp_message" in read(queue, includeRaw="true").columns


@pytest.mark.row("S-02")
def test_each_partition_is_an_input_partition_and_has_a_task_of_its_own(spark, one_bus):
    queue, keys = one_bus.queue(), keys_for(one_bus.partitions)
    settings = ClientSettings.from_connection_string(one_bus.server.connection_string)
    with BusClient(settings) as client:
        for key in keys:
            client.sender(queue).send([encode(b"%d" % number, partition_key=key) for number in range(50)])
    rows = (
        spark.read.format("servicebus")
        .option("connectionString", one_bus.server.connection_string)
        .option("entity", queue)
        .option("minPartitions", one_bus.partitions)
        .load()
    )
    assert rows.rdd.getNumPartitions() == one_bus.partitions
    found = rows.select("partition", "partition_key", "body", f.spark_partition_id().alias("task")).collect()
    # A task for each partition, and a partition for each task.
    pairs = {(row.partition, row.task) for row in found}
    assert len(pairs) == len({task for _, task in pairs}) == len(keys)
    for partition, key in enumerate(keys):
        mine = [row for row in found if row.partition == partition]
        assert {row.partition_key for row in mine} == {key}
        assert sorted(int(row.body) for row in mine) == [*range(50)]


@pytest.mark.row("S-02")
def test_tasks_are_packed_when_small_and_cut_when_asked_for(read, new_queue, fill):
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 400, keys=40)
    assert read(queue).rdd.getNumPartitions() == 1
    many = read(queue, minPartitions=30)
    assert many.rdd.getNumPartitions() == 30
    assert numbers(many) == [*range(400)]
    assert numbers(read(queue, minPartitions=4, maxPartitions=4)) == [*range(400)]


def test_filters_are_pushed_down_when_asked_for(read, new_queue, fill):
    """That they answer as Spark's own do: test_filters.py."""
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 200)
    pushing = read(queue, filterPushdown="true", minPartitions=4)
    number = pushing.agg(f.max("sequence_number")).first()[0]
    (row,) = pushing.where(f.col("sequence_number") == number).collect()
    assert row.sequence_number == number
    assert pushing.where(f.col("sequence_number") == number).rdd.getNumPartitions() == 1


def test_without_the_extensions_browsing_gives_the_same(read, new_queue, fill, kind):
    """As against Azure: plain peeks only."""
    queue = new_queue(kind)
    fill(queue, 600)
    with_them = sorted(map(tuple, read(queue).drop("application_properties").collect()))
    without = sorted(map(tuple, read(queue, extensions="never").drop("application_properties").collect()))
    assert without == with_them
    assert len(without) == 600


def test_the_key_is_in_no_plan_and_no_log(spark, server, read, new_queue, fill, event_log, capfd):
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 5)
    rows = read(queue)
    rows.explain("extended")
    rows.collect()
    with pytest.raises(Exception, match="nowhere") as caught:
        read("nowhere").collect()
    logged = "".join(path.read_text() for path in event_log.rglob("*") if path.is_file())
    told = capfd.readouterr()
    assert "servicebus" in told.out
    for text in (told.out, told.err, logged, str(caught.value)):
        assert server.key not in text
