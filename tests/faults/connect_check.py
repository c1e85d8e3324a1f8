"""Spark Connect and Declarative Pipelines with the data source, as docs/guides/spark.md says.

    make connect

A broker, a Spark Connect server in a process of its own, and a client of it: batches, writes, a stream and a
table in SQL. Then `spark-pipelines run` with a pipeline that reads a queue, makes two tables and sends to
another queue. It needs `bendybus[connect]` and takes about a minute, most of which is Spark starting twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ClientSettings, encode
from bendybus.errors import NotSupported
from bendybus.management.client import ManagementClient
from bendybus.management.properties import QUEUE, new_elements
from pyspark_servicebus import prepare_environment

COUNT = 60

SPEC = """\
name: orders
storage: {storage}
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.shuffle.partitions: "2"
"""

# The same as in docs/guides/spark.md.
TRANSFORMATIONS = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

spark = SparkSession.active()
bus = {"connectionStringEnv": "BENDYBUS_CONNECTION_STRING"}


@dp.table
def orders() -> DataFrame:
    return spark.readStream.format("servicebus").options(**bus, entity="orders").load()


@dp.materialized_view
def orders_by_key() -> DataFrame:
    return spark.read.table("orders").groupBy("partition_key").count()


dp.create_sink("late_orders", "servicebus", {**bus, "entity": "late-orders"})


@dp.append_flow(target="late_orders")
def late() -> DataFrame:
    orders = spark.readStream.table("orders")
    return orders.where(col("partition_key") == "k1").select("body", "partition_key", "message_id")
"""


def main() -> int:
    prepare_environment()
    with tempfile.TemporaryDirectory(prefix="bendybus-connect-") as name:
        folder = Path(name)
        serve = ["serve", "--data", str(folder / "data"), "--port", "0", "--admin-port", "0"]
        command = [str(Path(sys.executable).with_name("bendybus")), *serve]
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert broker.stdout is not None
            string = broker.stdout.readline().removeprefix("ready ").strip()
            os.environ["BENDYBUS_CONNECTION_STRING"] = string
            with ManagementClient(ConnectionString.parse(string)) as management:
                for queue in ("orders", "late-orders"):
                    management.create(queue, QUEUE.element, new_elements(QUEUE, {"EnablePartitioning": True}))
            with BusClient(ClientSettings.from_connection_string(string)) as client:
                for number in range(COUNT):
                    key = f"k{number % 3}"
                    client.sender("orders").send([encode(b"%d" % number, partition_key=key)], key)
            for check in (connect, declarative):
                check(folder)
                print(f"{check.__name__}: done", flush=True)  # noqa: T201
        finally:
            broker.terminate()
            broker.wait(60)
    return 0


def connect(folder: Path) -> None:
    """A client without a JVM of its own: everything but `bendybus pipeline` works."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        assert isinstance(spark, ConnectSession)
        bus = {"connectionStringEnv": "BENDYBUS_CONNECTION_STRING"}
        orders = spark.read.format("servicebus").options(**bus, entity="orders").load()
        assert orders.count() == COUNT
        rows = spark.range(5).selectExpr("string(id) AS body", "'k' AS partition_key")
        rows.write.format("servicebus").options(**bus, entity="late-orders").mode("append").save()
        streamed = (
            spark.readStream.format("servicebus").options(**bus, entity="late-orders", mode="consume").load()
        )
        writing = streamed.writeStream.format("parquet").trigger(availableNow=True)
        query = writing.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "sink"))
        query.awaitTermination()
        assert spark.read.parquet(str(folder / "sink")).count() == 5
        place = (folder / "table").as_uri()
        spark.sql(
            "CREATE TABLE orders USING servicebus "
            f"OPTIONS (connectionStringEnv 'BENDYBUS_CONNECTION_STRING', entity 'orders') LOCATION '{place}'"
        )
        assert spark.sql("SELECT count(*) AS n FROM orders").first().n == COUNT
        told = raised(
            lambda: spark.read.format("servicebus").options(**bus, subscribe="orders").load().count()
        )
        assert "Here it is 'entity'" in str(told) and "Traceback" not in str(told), told
        refused = raised(lambda: pipelines_of_connect(spark, folder))
        assert isinstance(refused, NotSupported), refused
    finally:
        spark.stop()


def pipelines_of_connect(spark: Any, folder: Path) -> None:
    from pyspark_servicebus.pipelines import Bus, Capture, Run

    bus = Bus(os.environ["BENDYBUS_CONNECTION_STRING"])
    Capture(bus=bus, entity="orders", path=str(folder / "captured")).run(spark, Run())


def declarative(folder: Path) -> None:
    """`spark-pipelines run` ends when all tables and sinks have what there is."""
    project = folder / "project"
    (project / "transformations").mkdir(parents=True)
    (project / "spark-pipeline.yml").write_text(SPEC.format(storage=(folder / "storage").as_uri()))
    (project / "transformations" / "orders.py").write_text(dedent(TRANSFORMATIONS))
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with BusClient(ClientSettings.from_connection_string(os.environ["BENDYBUS_CONNECTION_STRING"])) as client:
        late = client.receiver("late-orders", deletes=True).receive(COUNT, timeout_s=5)
    assert sorted(int(message.body) for message in late) == [*range(1, COUNT, 3)], late


def raised(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was refused")


if __name__ == "__main__":
    sys.exit(main())
