"""One Spark for all tests, with its event log kept; short cuts to the data source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pyspark.sql import DataFrame, SparkSession

from bendybus.client import BusClient, ClientSettings, encode
from fix_server import ServerProcess
from pyspark_servicebus import spark_session

Options: TypeAlias = Callable[..., dict[str, str]]
Read: TypeAlias = Callable[..., DataFrame]


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("event-log")


@pytest.fixture(scope="session")
def spark(event_log: Path) -> Iterator[SparkSession]:
    session = spark_session(
        "tests",
        "local[2]",
        {
            "spark.ui.enabled": "false",
            # A session of tests is too short for the optimising compiler to pay off.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": event_log.as_uri(),
            "spark.sql.python.filterPushdown.enabled": "true",
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def options(server: ServerProcess) -> Options:
    """`options(entity, name=value, ...)` for the data source."""

    def make(entity: str, **more: Any) -> dict[str, str]:
        given = {"connectionString": server.connection_string, "entity": entity}
        return given | {name: str(value) for name, value in more.items()}

    return make


@pytest.fixture
def read(spark: SparkSession, options: Options) -> Read:
    def make(entity: str, **more: Any) -> DataFrame:
        return spark.read.format("servicebus").options(**options(entity, **more)).load()

    return make


@pytest.fixture
def client(server: ServerProcess) -> Iterator[BusClient]:
    with BusClient(ClientSettings.from_connection_string(server.connection_string)) as client:
        yield client


@pytest.fixture
def fill(client: BusClient) -> Callable[..., None]:
    """Send so many small messages, over several keys so that partitions fill."""

    def send(entity: str, count: int, first: int = 0, keys: int = 8) -> None:
        sender = client.sender(entity)
        for key in range(keys):
            bodies = [b"%d" % number for number in range(first, first + count) if number % keys == key]
            if bodies:
                sender.post([encode(body, partition_key=f"k{key}") for body in bodies], f"k{key}")
        sender.flush()

    return send


def numbers(rows: DataFrame) -> list[int]:
    """The bodies that `fill` made."""
    return sorted(int(row.body) for row in rows.select("body").collect())
