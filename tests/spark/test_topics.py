"""Topics, subscriptions and sessions, as Spark sees them."""

from __future__ import annotations

import uuid

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from pyspark.sql.types import StringType, StructField, StructType

from fix_server import RULES, Kind
from pyspark_servicebus.options import WriteOptions
from pyspark_servicebus.writing import prepare
from spark.conftest import numbers


@pytest.fixture
def topic(server):
    """A partitioned topic with the subscription `all`, whose messages have sessions."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    with ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=str(server.certificate)
    ) as admin:
        admin.create_topic(name, enable_partitioning=True)
        admin.create_subscription(name, "all", requires_session=True)
    return name


@pytest.mark.row("S-01", "S-04")
def test_rows_go_through_a_topic_and_are_consumed_from_its_subscription(
    spark, options, read, topic, tmp_path
):
    subscription = f"{topic}/subscriptions/all"
    rows = spark.range(300, numPartitions=1).selectExpr(
        "cast(id as string) as body", "concat('s', id % 5) as session_id"
    )
    rows.write.format("servicebus").options(**options(topic)).mode("append").save()
    of_one = read(subscription, sessionId="s2").orderBy("sequence_number").collect()
    assert [int(row.body) for row in of_one] == [*range(2, 300, 5)]
    assert {(row.session_id, row.partition) for row in of_one} == {("s2", of_one[0].partition)}
    query = (
        spark.readStream.format("servicebus")
        .options(**options(subscription, mode="consume", maxMessagesPerTrigger=200))
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "sink"))
    )
    query.awaitTermination()
    assert numbers(spark.read.parquet(str(tmp_path / "sink"))) == [*range(300)]
    assert read(subscription).count() == 0


def test_a_key_that_may_only_send_is_enough_to_write(options, new_queue, server):
    key, _ = RULES["Sends"]
    given = options(new_queue(Kind.PARTITIONED))
    given["connectionString"] = (
        given["connectionString"].replace(server.key, key).replace("RootManageSharedAccessKey", "Sends")
    )
    assert prepare(WriteOptions.parse(given), StructType([StructField("body", StringType())]), False) is False
