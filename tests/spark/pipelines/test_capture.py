"""Capture: an entity into files, once, however often it is cut off."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from bendybus.errors import ArgumentError, ConfigError, EntityNotFound
from pyspark_servicebus.pipelines import Bus, Capture, Progress, Run, captured
from pyspark_servicebus.pipelines.checkpoint import Folder
from spark.pipelines.conftest import (
    Contents,
    Interrupted,
    MakeQueue,
    SendKeyed,
    finish,
    forget_last_commit,
    interrupted,
)

# Spark's share alone is seconds; a machine with other work makes it minutes.
pytestmark = pytest.mark.timeout(400)


def killed(*arguments: object) -> None:
    raise Interrupted


def numbers(spark: SparkSession, path: Path) -> list[int]:
    return sorted(int(row.body) for row in captured(spark, str(path)).select("body").collect())


@pytest.mark.row("S-05")
def test_each_message_is_captured_once_and_lies_by_entity_date_and_partition(
    spark: SparkSession,
    bus: Bus,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = make_queue()
    capture = Capture(bus=bus, entity=queue, path=str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_servicebus.pipelines.capture.run_stream", killed)
        with pytest.raises(Interrupted):
            finish(capture, spark)
    # As after a kill while Spark wrote down what its first batch would be.
    offsets = tmp_path / "_checkpoints" / f"entity={queue}" / "offsets"
    offsets.mkdir()
    (offsets / ".0.4f1c8d7e.tmp").write_text("v1")
    send_keyed(queue, 40)
    interrupted(capture, spark, at=1)
    send_keyed(queue, 30, first=40)
    assert finish(capture, spark).details["mode"] == "browse"
    assert numbers(spark, tmp_path) == list(range(70))
    files = [path.relative_to(tmp_path).parts for path in tmp_path.glob("*/date=*/partition=*/*.parquet")]
    assert {parts[0] for parts in files} == {f"entity={queue}"}
    rows = captured(spark, str(tmp_path))
    assert {"entity", "date", "partition", "captured_time", "amqp_message", "body"} <= set(rows.columns)
    assert {row.partition for row in rows.select("partition").collect()} <= {
        int(parts[2].removeprefix("partition=")) for parts in files
    }


@pytest.mark.row("S-03", "S-05")
def test_a_batch_that_comes_again_enters_a_delta_table_once(
    spark: SparkSession, bus: Bus, make_queue: MakeQueue, send_keyed: SendKeyed, tmp_path: Path
) -> None:
    queue = make_queue()
    capture = Capture(bus=bus, entity=queue, path=str(tmp_path), format="delta")
    send_keyed(queue, 20)
    assert finish(capture, spark).messages == 20
    forget_last_commit(tmp_path / "_checkpoints" / f"entity={queue}")
    finish(capture, spark)
    table = DeltaTable(tmp_path / f"entity={queue}")
    assert table.to_pyarrow_table(columns=["sequence_number"]).num_rows == 20
    assert numbers(spark, tmp_path) == list(range(20))


def test_what_was_consumed_is_in_the_files_and_gone_from_the_queue(
    spark: SparkSession,
    bus: Bus,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    queue = make_queue()
    send_keyed(queue, 20)
    told: list[Progress] = []
    capture = Capture(bus=bus, entity=queue, path=str(tmp_path), consume=True, messages_per_trigger=12)
    capture.run(spark, Run(tell=told.append))
    # It says how far it is, and how far it has to go.
    assert (told[-1].messages, told[-1].total) == (20, 20)
    assert numbers(spark, tmp_path) == list(range(20))
    assert contents(queue) == []


def test_two_entities_share_a_folder_and_keep_apart(
    spark: SparkSession, bus: Bus, make_queue: MakeQueue, send_keyed: SendKeyed, tmp_path: Path
) -> None:
    one, other = make_queue(), make_queue(partitioned=False)
    for queue, first in ((one, 0), (other, 10)):
        send_keyed(queue, 10, first=first)
        finish(Capture(bus=bus, entity=queue, path=str(tmp_path), raw=False), spark)
    assert numbers(spark, tmp_path) == list(range(20))
    rows = captured(spark, str(tmp_path), other).collect()
    assert {int(row.body) for row in rows} == set(range(10, 20))


def test_a_folder_or_a_checkpoint_of_another_capture_is_refused(
    spark: SparkSession, bus: Bus, make_queue: MakeQueue, tmp_path: Path
) -> None:
    one, other = make_queue(), make_queue()
    mine = str(tmp_path / "checkpoint")
    capture = Capture(bus=bus, entity=one, path=str(tmp_path / "a"), checkpoint=mine)
    finish(capture, spark)
    # A second query would find the numbers of its batches taken, and write nothing.
    with pytest.raises(ConfigError, match="captured under another checkpoint"):
        finish(replace(capture, checkpoint=str(tmp_path / "new")), spark)
    with pytest.raises(ConfigError, match="other format"):
        finish(replace(capture, format="delta"), spark)
    with pytest.raises(ConfigError, match=f"entity = '{one}', not '{other}'"):
        finish(replace(capture, entity=other, path=str(tmp_path / "b")), spark)
    with pytest.raises(ConfigError, match="mode = 'browse', not 'consume'"):
        finish(replace(capture, consume=True), spark)


def test_what_is_wrong_is_said_without_spark(bus: Bus, make_queue: MakeQueue, tmp_path: Path) -> None:
    with pytest.raises(EntityNotFound, match="nowhere"):
        Capture(bus=bus, entity="nowhere", path=str(tmp_path)).check()
    with pytest.raises(ArgumentError, match="none of the formats"):
        Capture(bus=bus, entity=make_queue(), path=str(tmp_path), format="csv").check()
    Capture(bus=bus, entity=f"{make_queue()}/$deadletterqueue", path=str(tmp_path), consume=True).check()


def test_a_file_of_a_checkpoint_is_there_at_every_moment(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, str(tmp_path / "checkpoint"))
    folder.write_json("state.json", {"number": 0})
    written = threading.Event()
    missing: list[int] = []

    def look() -> None:
        while not written.is_set():
            if not (tmp_path / "checkpoint" / "state.json").exists():
                missing.append(1)

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(200):
        folder.write_json("state.json", {"number": number})
    written.set()
    looking.join()
    assert not missing
    assert folder.read_json("state.json") == {"number": 199}
