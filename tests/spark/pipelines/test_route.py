"""Route: a stream through SQL, once where the destination has duplicate detection."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bendybus.errors import ArgumentError, ConfigError, EntityNotFound, InvalidOperation
from pyspark_servicebus.pipelines import Bus, Route
from spark.pipelines.conftest import (
    Contents,
    MakeQueue,
    SendKeyed,
    by_key,
    finish,
    forget_last_commit,
    interrupted,
)

# Spark's share alone is seconds; a machine with other work makes it minutes.
pytestmark = pytest.mark.timeout(400)

STATEMENT = "SELECT body, partition_key, message_id FROM messages WHERE partition_key IN ('k1', 'k2')"


@pytest.mark.row("S-05")
def test_what_a_statement_selects_is_sent_once_over_cuts_and_runs(
    spark: SparkSession,
    bus: Bus,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source, destination = make_queue(), make_queue(RequiresDuplicateDetection=True)
    route = Route(
        bus=bus, source=source, destination=destination, statement=STATEMENT, checkpoint=str(tmp_path / "c")
    )
    send_keyed(source, 16)
    interrupted(route, spark, at=1)
    finish(route, spark)
    forget_last_commit(tmp_path / "c")
    send_keyed(source, 8, first=16)
    finish(route, spark)
    assert by_key(contents(destination)) == {"k1": [1, 5, 9, 13, 17, 21], "k2": [2, 6, 10, 14, 18, 22]}
    assert contents(source) == []


def test_what_is_wrong_with_a_route_is_named_before_a_message_is_touched(
    spark: SparkSession,
    bus: Bus,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    source, destination = make_queue(), make_queue()
    send_keyed(source, 4)

    def route(statement: str = STATEMENT, to: str = destination) -> Route:
        return Route(
            bus=bus, source=source, destination=to, statement=statement, checkpoint=str(tmp_path / "c")
        )

    with pytest.raises(EntityNotFound, match="nowhere"):
        route(to="nowhere").check()
    with pytest.raises(InvalidOperation, match="to itself"):
        route(to=source).check()
    with pytest.raises(ArgumentError, match="colour"):
        finish(route("SELECT colour FROM messages"), spark)
    # PySpark's own line about it is not printed, and its logger does not change the handlers of others.
    assert "colour" not in capfd.readouterr().err
    assert logging.getLogger("SQLQueryContextLogger").propagate
    with pytest.raises(ArgumentError, match="SELEC"):
        finish(route("SELEC body FROM messages"), spark)
    with pytest.raises(ArgumentError, match="need a column 'body'"):
        finish(route("SELECT subject FROM messages"), spark)
    with pytest.raises(ArgumentError, match="does not read the view"):
        finish(route("SELECT 'x' AS body"), spark)
    assert not (tmp_path / "c").exists()
    assert len(contents(source)) == 4
    summary = finish(route(), spark)
    assert (summary.messages, summary.details["sent"], summary.details["dropped"]) == (4, 2, 2)
    other = Route(
        bus=bus, source=destination, destination=source, statement=STATEMENT, checkpoint=str(tmp_path / "c")
    )
    with pytest.raises(ConfigError, match="destination = "):
        finish(other, spark)
