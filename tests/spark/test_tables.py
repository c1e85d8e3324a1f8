"""A queue as a table of Spark's catalog: created, queried, inserted into and streamed in SQL."""

from __future__ import annotations

import uuid

import pytest

from fix_server import Kind
from spark.conftest import numbers

# Spark's share alone is seconds; a machine with other work makes it minutes.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def secret(server, tmp_path):
    path = tmp_path / "secret"
    path.write_text(server.connection_string)
    return path


@pytest.fixture
def table(spark):
    name = f"t_{uuid.uuid4().hex[:8]}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def create(spark, table, queue, secret) -> None:
    # A managed table would leave an empty folder in the current one.
    folder = secret.with_name("table").as_uri()
    given = f"connectionStringFile '{secret}', Entity '{queue}'"
    spark.sql(f"CREATE TABLE {table} USING servicebus OPTIONS ({given}) LOCATION '{folder}'")


@pytest.mark.row("S-01")
def test_a_queue_is_a_table_that_is_queried_inserted_into_and_streamed(
    spark, secret, table, new_queue, fill, tmp_path
):
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 20)
    create(spark, table, queue, secret)
    assert numbers(spark.table(table)) == [*range(20)]
    # A query may have options of its own.
    some = numbers(spark.read.option("partitions", "0,1,2,3").table(table))
    assert some == numbers(spark.table(table).where("partition < 4"))
    spark.sql(f"INSERT INTO {table} (body, partition_key) VALUES (cast('20' AS BINARY), 'k0')")
    assert (
        spark.sql(f"SELECT max(partition_key) AS key FROM {table} WHERE string(body) = '20'").first().key
        == "k0"
    )
    sink = tmp_path / "sink"
    writing = spark.readStream.table(table).writeStream.format("parquet").trigger(availableNow=True)
    writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(sink)).awaitTermination()
    assert numbers(spark.read.parquet(str(sink))) == [*range(21)]


def test_a_table_holds_no_secret_and_rows_of_a_table_go_only_where_they_are_sent(
    spark, secret, server, table, new_queue, options, fill, read
):
    queue, other = new_queue(Kind.PARTITIONED), new_queue(Kind.PARTITIONED)
    with pytest.raises(Exception, match="cannot keep the option 'connectionString'") as caught:
        spark.sql(
            f"CREATE TABLE {table} USING servicebus "
            f"OPTIONS (connectionString '{server.connection_string}', entity '{queue}')"
        )
    assert server.key not in str(caught.value)
    fill(queue, 5)
    create(spark, table, queue, secret)
    assert server.key not in spark.table(table).schema.json()
    spark.table(table).write.format("servicebus").options(**options(other)).mode("append").save()
    assert (read(queue).count(), read(other).count()) == (5, 5)


def test_a_table_with_a_list_of_columns_says_why_it_has_no_options(spark, secret, table, new_queue):
    create(spark, f"{table} (body BINARY)", new_queue(Kind.PARTITIONED), secret)
    with pytest.raises(Exception, match="created without a list of columns"):
        spark.table(table).collect()
