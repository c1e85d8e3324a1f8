"""Replay: captured messages sent again, as they were, in their order, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bendybus.errors import ArgumentError, ConfigError, EntityNotFound
from pyspark_servicebus.pipelines import Bus, Capture, Replay, Run
from pyspark_servicebus.pipelines.jobs import browse
from spark.pipelines.conftest import Contents, MakeQueue, SendKeyed, by_key, expected, finish, interrupted

# Spark's share alone is seconds; a machine with other work makes it minutes.
pytestmark = pytest.mark.timeout(400)


def keep(spark: SparkSession, bus: Bus, entity: str, path: Path) -> None:
    """As a capture leaves it, without its stream."""
    rows = browse(spark, bus, entity).drop("key").selectExpr("*", "string(date(enqueued_time)) AS date")
    rows.write.partitionBy("date", "partition").parquet(str(path / f"entity={entity}"))


@pytest.mark.row("S-05")
def test_a_replay_that_is_cut_off_anywhere_sends_each_message_once_and_in_order(
    spark: SparkSession,
    bus: Bus,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source, destination = make_queue(), make_queue(partitioned=False)
    send_keyed(source, 40)
    keep(spark, bus, source, tmp_path)
    replay = Replay(bus=bus, path=str(tmp_path), destination=destination, step=15)
    assert interrupted(replay, spark, at=1)
    # As if it had been cut off while it sent: the step went out, and its end was not noted.
    (plan,) = tmp_path.glob("_checkpoints/replay-*/replay.json")
    plan.write_text(plan.read_text().replace('"done": 1', '"done": 0'))
    plan.with_name(".replay.json.crc").unlink(missing_ok=True)
    finish(replay, spark)
    found = contents(destination)
    assert by_key(found) == expected(40)
    # Typed as they were sent, which columns of text could not keep.
    assert found[0].application_properties == {"number": int(found[0].body), "text": "five", "yes": True}
    assert {message.message_id for message in found} == {f"m{number}" for number in range(40)}


def test_what_is_captured_later_is_replayed_later(
    spark: SparkSession,
    bus: Bus,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source, destination = make_queue(), make_queue()
    capture = Capture(bus=bus, entity=source, path=str(tmp_path), raw=False)
    replay = Replay(bus=bus, path=str(tmp_path), destination=destination)
    send_keyed(source, 8)
    finish(capture, spark)
    assert finish(replay, spark).messages == 8
    send_keyed(source, 4, first=8)
    finish(capture, spark)
    assert finish(replay, spark).messages == 4
    assert finish(replay, spark).messages == 0
    assert by_key(contents(destination)) == expected(12)


def test_a_condition_chooses_and_a_stop_is_heard(
    spark: SparkSession,
    bus: Bus,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source, destination = make_queue(), make_queue()
    send_keyed(source, 12)
    keep(spark, bus, source, tmp_path)
    replay = Replay(bus=bus, path=str(tmp_path), destination=destination, where="partition_key = 'k1'")
    stopped = Run()
    stopped.stopping.set()
    assert replay.run(spark, stopped).outcome == "stopped"
    assert contents(destination) == []
    finish(replay, spark)
    assert by_key(contents(destination)) == {"k1": [1, 5, 9]}
    other = Replay(
        bus=bus,
        path=str(tmp_path),
        destination=destination,
        where="partition_key = 'k2'",
        checkpoint=str(next(tmp_path.glob("_checkpoints/replay-*"))),
    )
    with pytest.raises(ConfigError, match="where = "):
        finish(other, spark)


def test_what_is_wrong_with_a_replay_is_named(
    spark: SparkSession, bus: Bus, make_queue: MakeQueue, send_keyed: SendKeyed, tmp_path: Path
) -> None:
    queue = make_queue()
    with pytest.raises(ArgumentError, match="holds no capture"):
        Replay(bus=bus, path=str(tmp_path), destination=queue).check()
    with pytest.raises(ArgumentError, match="no folder"):
        Replay(bus=bus, path=str(tmp_path / "none"), destination=queue).check()
    send_keyed(queue, 4)
    keep(spark, bus, queue, tmp_path)
    with pytest.raises(EntityNotFound, match="nowhere"):
        Replay(bus=bus, path=str(tmp_path), destination="nowhere").check()
    with pytest.raises(ArgumentError, match="no capture of 'other'"):
        finish(Replay(bus=bus, path=str(tmp_path), destination=queue, entity="other"), spark)
    with pytest.raises(ArgumentError, match="nonsense"):
        finish(Replay(bus=bus, path=str(tmp_path), destination=queue, where="nonsense = 1"), spark)
