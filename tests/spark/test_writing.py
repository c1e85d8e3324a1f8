"""Rows written by a real Spark, read by the SDK and by Spark again."""

from __future__ import annotations

import datetime

import pytest
from azure.servicebus import ServiceBusClient
from pyspark.sql import functions as f

from bendybus.domain.routing import partition_of
from fix_server import Kind, Shape


def write(rows, options, mode="append"):
    rows.write.format("servicebus").options(**options).mode(mode).save()


@pytest.mark.row("S-01")
def test_columns_become_a_message_as_the_sdk_sees_it(spark, server, options, new_queue):
    queue = new_queue(Kind.PARTITIONED)
    rows = spark.createDataFrame(
        [("hello", "m1", "ada", "greeting", "c1", "text/plain", 600_000, {"a": 1})],
        "body string, message_id string, partition_key string, subject string, correlation_id string, "
        "content_type string, time_to_live_ms long, application_properties map<string,long>",
    )
    write(rows, options(queue))
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as sdk,
        sdk.get_queue_receiver(queue, max_wait_time=10) as receiver,
    ):
        (message,) = receiver.receive_messages(1)
        receiver.complete_message(message)
    assert str(message) == "hello"
    assert (message.message_id, message.partition_key, message.subject) == ("m1", "ada", "greeting")
    assert (message.correlation_id, message.content_type) == ("c1", "text/plain")
    assert message.time_to_live == datetime.timedelta(minutes=10)
    assert message.application_properties == {b"a": 1}


@pytest.mark.row("S-04")
def test_rows_of_one_key_stay_in_order_and_in_one_partition(spark, options, read, new_queue):
    queue = new_queue(Kind.PARTITIONED)
    rows = spark.range(3000, numPartitions=1).selectExpr(
        "cast(id as string) as body", "concat('k', id % 7) as partition_key"
    )
    write(rows, options(queue))
    found = read(queue).select("partition_key", "partition", "sequence_number", "body").collect()
    assert len(found) == 3000
    for key in range(7):
        mine = sorted((row for row in found if row.partition_key == f"k{key}"), key=lambda row: row[2])
        assert len({row.partition for row in mine}) == 1
        assert [int(row.body) for row in mine] == [*range(key, 3000, 7)]


@pytest.mark.row("S-04")
def test_several_tasks_keep_each_key_in_one_partition_and_in_order(spark, one_bus):
    """Rows of one key are one task's, as `repartition` makes them; other tasks send beside it."""
    queue = one_bus.queue()
    given = {"connectionString": one_bus.server.connection_string, "entity": queue}
    rows = (
        spark.range(4000, numPartitions=4)
        .selectExpr("id", "cast(id as string) as body", "concat('k', id % 23) as partition_key")
        .repartition(4, "partition_key")
        .sortWithinPartitions("id")
        .drop("id")
    )
    assert rows.rdd.glom().map(len).filter(bool).count() > 1
    write(rows, given)
    read = spark.read.format("servicebus").options(**given).load()
    found = read.select("partition_key", "partition", "sequence_number", "body").collect()
    assert len(found) == 4000
    for key in range(23):
        mine = sorted((row for row in found if row.partition_key == f"k{key}"), key=lambda row: row[2])
        assert {row.partition for row in mine} == {partition_of(f"k{key}", one_bus.partitions)}
        assert [int(row.body) for row in mine] == [*range(key, 4000, 23)]


def test_rows_that_were_read_can_be_written_as_they_were(options, read, new_queue, fill):
    source, copy = new_queue(Kind.PARTITIONED), new_queue(Kind.UNPARTITIONED)
    fill(source, 300)
    write(read(source, includeRaw="true"), options(copy))
    columns = ("body", "message_id", "partition_key", "time_to_live_ms")
    assert sorted(map(tuple, read(copy).select(*columns).collect())) == sorted(
        map(tuple, read(source).select(*columns).collect())
    )


def test_a_scheduled_row_waits_for_its_time(spark, options, read, new_queue):
    queue = new_queue(Kind.PARTITIONED)
    rows = spark.range(3).selectExpr(
        "cast(id as string) as body", "current_timestamp() + interval 1 day as scheduled_enqueue_time"
    )
    write(rows, options(queue))
    assert read(queue).count() == 0
    assert read(queue, states="scheduled").count() == 3


def test_with_duplicate_detection_equal_ids_are_sent_once(spark, options, read, new_queue, kind):
    queue = new_queue(kind, Shape.ONCE)
    rows = spark.range(200).selectExpr("cast(id as string) as body", "concat('m', id) as message_id")
    write(rows, options(queue))
    write(rows, options(queue))
    assert read(queue).count() == 200


def test_a_schema_without_a_body_is_refused_before_anything_is_sent(spark, options, read, new_queue):
    """What else may be wrong with one: test_rows.py."""
    queue = new_queue(Kind.PARTITIONED)
    with pytest.raises(Exception, match="need a column 'body'"):
        write(spark.range(3).selectExpr("cast(id as string) as text"), options(queue))
    assert read(queue).count() == 0


def test_messages_cannot_be_overwritten(spark, options, new_queue):
    rows = spark.range(1).select(f.lit("x").alias("body"))
    with pytest.raises(Exception, match="overwritten"):
        write(rows, options(new_queue(Kind.PARTITIONED)), mode="overwrite")
