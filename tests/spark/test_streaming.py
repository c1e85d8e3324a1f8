"""Streams of a real Spark: exactly what there is, once, whatever is stopped in between."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from pyspark.errors import StreamingQueryException

from bendybus.client import encode
from fix_server import Kind, Shape
from pyspark_servicebus import lag_of
from spark.conftest import numbers
from spark.test_data_loss import await_messages

# Spark's share alone is seconds; a machine with other work makes it minutes.
pytestmark = pytest.mark.timeout(400)

# Spark gives a new Python process ten seconds to report, which a machine full of other work may exceed.
STARVED = "Python worker failed to connect back"


def run_to_the_end(writing, path: str | None = None):
    for last in (False, False, True):
        query = writing.start(path) if path is not None else writing.start()
        try:
            query.awaitTermination()
        except StreamingQueryException as failure:
            if last or STARVED not in str(failure):
                raise
        else:
            return query
    raise AssertionError("the last attempt returns or raises")


@pytest.fixture
def capture(spark, options, tmp_path):
    """Run a stream into Parquet until it has caught up; gives its query."""

    def run(queue: str, to: str = "captured", checkpoint: str | None = None, **more):
        writing = (
            spark.readStream.format("servicebus")
            .options(**options(queue, **more))
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / (checkpoint or f"{to}-checkpoint")))
            .trigger(availableNow=True)
        )
        return run_to_the_end(writing, str(tmp_path / to))

    return run


@pytest.fixture
def captured(spark, tmp_path):
    return lambda to="captured": numbers(spark.read.parquet(str(tmp_path / to)))


def forget_first(log: Path) -> None:
    """As if Spark had been killed before it noted its first batch there."""
    for name in ("0", ".0.crc"):
        (log / name).unlink()


def sizes(query) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress]


@pytest.mark.row("S-03")
def test_a_stream_goes_on_where_its_checkpoint_ends(capture, captured, new_queue, fill, read):
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 500)
    capture(queue)
    assert captured() == [*range(500)]
    fill(queue, 300, first=500)
    assert sum(sizes(capture(queue))) == 300
    assert captured() == [*range(800)]
    assert read(queue).count() == 800


def test_batches_keep_to_the_rate_limit(capture, captured, new_queue, fill):
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 1000)
    query = capture(queue, maxMessagesPerTrigger=300)
    assert sizes(query) == [300, 300, 300, 100]
    assert [lag_of(progress) for progress in query.recentProgress] == [700, 400, 100, 0]
    assert captured() == [*range(1000)]


@pytest.mark.row("S-03")
def test_consuming_completes_all_that_is_in_the_sink_and_nothing_else(
    capture, captured, new_queue, fill, read, client
):
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 300)
    receiver = client.receiver(queue)
    (held,) = receiver.receive(1)
    receiver.defer([held])
    capture(queue, mode="consume", maxMessagesPerTrigger=100)
    assert captured() == sorted({*range(300)} - {int(held.body)})
    assert read(queue).count() == 0
    assert read(queue, states="deferred").count() == 1
    fill(queue, 100, first=300)
    capture(queue, mode="consume")
    assert captured() == sorted({*range(400)} - {int(held.body)})
    assert read(queue).count() == 0


def test_consuming_some_partitions_leaves_the_others_as_they_are(capture, captured, new_queue, fill, read):
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 300)
    there = read(queue)
    one = there.agg({"partition": "min"}).first()[0]
    ours, others = numbers(there.where(f"partition = {one}")), numbers(there.where(f"partition <> {one}"))
    assert ours and others
    capture(queue, mode="consume", partitions=str(one))
    assert captured() == ours
    assert numbers(read(queue)) == others


def test_a_batch_that_is_not_committed_is_replayed_as_it_was(capture, captured, new_queue, fill, tmp_path):
    """The range that the checkpoint has, though more has come since."""
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 200)
    capture(queue)
    offset = json.loads((tmp_path / "captured-checkpoint/offsets/0").read_text().splitlines()[-1])
    assert sum(offset["positions"].values()) - sum(offset["from"].values()) == 200
    forget_first(tmp_path / "captured-checkpoint" / "commits")
    forget_first(tmp_path / "captured" / "_spark_metadata")
    fill(queue, 100, first=200)
    assert sizes(capture(queue)) == [200, 100]
    assert captured() == [*range(300)]


def test_one_consumer_at_a_time(capture, new_queue, fill):
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 20)
    capture(queue, mode="consume")
    with pytest.raises(Exception, match="has the lease"):
        capture(queue, "other", mode="consume", startingOffsets="earliest")


def test_a_receiver_that_holds_messages_stops_the_commit(capture, captured, new_queue, fill, client, read):
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 20)
    receiver = client.receiver(queue)
    held = receiver.receive(1)
    with pytest.raises(Exception, match="locked by receivers"):
        capture(queue, mode="consume")
    receiver.abandon(held)
    fill(queue, 5, first=20)
    capture(queue, mode="consume")
    assert captured() == [*range(25)]
    assert read(queue).count() == 0


# -- checkpoints that do not fit ----------------------------------------------------------


def test_a_checkpoint_of_another_entity_is_refused(capture, new_queue, fill):
    queue, other = new_queue(Kind.PARTITIONED), new_queue(Kind.PARTITIONED)
    fill(queue, 5)
    capture(queue, checkpoint="c")
    with pytest.raises(Exception, match=f"checkpoint is of '{queue}', not of '{other}'"):
        capture(other, checkpoint="c")


def test_an_entity_created_anew_is_noticed(server, capture, captured, fill):
    name = f"again-{uuid.uuid4().hex[:8]}"
    with ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=str(server.certificate)
    ) as admin:
        admin.create_queue(name)
        fill(name, 5)
        capture(name)
        admin.delete_queue(name)
        admin.create_queue(name)
    fill(name, 3, first=5)
    with pytest.raises(Exception, match="created again"):
        capture(name)
    capture(name, failOnDataLoss="false")
    assert captured() == [*range(8)]


def test_a_checkpoint_older_than_the_messages_is_refused(capture, captured, new_queue, fill, client):
    queue = new_queue(Kind.UNPARTITIONED)
    fill(queue, 5, keys=1)
    capture(queue)
    fill(queue, 10, first=5, keys=1)
    assert len(client.receiver(queue, deletes=True).receive(12)) == 12
    with pytest.raises(Exception, match=r"older than the messages .* go on with 6, and the oldest is 13"):
        capture(queue)
    capture(queue, failOnDataLoss="false")
    assert captured() == [*range(5), 12, 13, 14]


@pytest.mark.row("S-03")
def test_a_stream_goes_on_if_a_scheduled_message_became_due_meanwhile(
    capture, captured, new_queue, fill, client
):
    """All that leaves a gap in the numbers: test_data_loss.py."""
    queue = new_queue(Kind.UNPARTITIONED)
    fill(queue, 5, keys=1)
    capture(queue, mode="consume")
    due = int(time.time() * 1000 + 200)
    client.sender(queue).send([encode(b"5", scheduled_enqueue_time_ms=due)])
    await_messages(client, queue, 1)
    capture(queue, mode="consume")
    assert captured() == [*range(6)]


# -- dead letters -------------------------------------------------------------------------


def test_dead_letters_are_streamed_once_in_whatever_order_they_come(
    capture, captured, new_queue, fill, client, read
):
    """More about their stream: test_letters.py."""
    queue = new_queue(Kind.PARTITIONED)
    letters = f"{queue}/$deadletterqueue"
    fill(queue, 40)
    receiver = client.receiver(queue)
    # What came last is buried first: later letters have lower numbers.
    messages = sorted(take(receiver, 40), key=lambda message: message.sequence_number)
    receiver.dead_letter(messages[20:], "Bad")
    receiver.abandon(messages[:20])
    assert sum(sizes(capture(letters, mode="consume", maxMessagesPerTrigger=15))) == 20
    receiver.dead_letter(take(receiver, 20), "Bad")
    assert sum(sizes(capture(letters, mode="consume", maxMessagesPerTrigger=15))) == 20
    assert captured() == [*range(40)]
    assert read(letters).count() == 0
    receiver.close()


def take(receiver, count: int) -> list:
    taken: list = []
    while len(taken) < count:
        taken += receiver.receive(count - len(taken))
    return taken


# -- writing ------------------------------------------------------------------------------


@pytest.mark.row("S-04")
def test_a_replayed_batch_is_harmless_where_duplicates_are_dropped(spark, options, new_queue, read, tmp_path):
    queue = new_queue(Kind.PARTITIONED, Shape.ONCE)
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    spark.range(100).selectExpr("cast(id as string) as body").write.parquet(str(source))

    def run() -> None:
        rows = spark.readStream.schema("body string").parquet(str(source))
        writing = rows.writeStream.format("servicebus").options(**options(queue))
        run_to_the_end(writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True))

    run()
    forget_first(checkpoint / "commits")
    run()
    assert numbers(read(queue)) == [*range(100)]


def test_a_stream_goes_from_entity_to_entity(spark, options, new_queue, fill, read, tmp_path):
    source, target = new_queue(Kind.PARTITIONED), new_queue(Kind.UNPARTITIONED)
    fill(source, 200)
    rows = spark.readStream.format("servicebus").options(**options(source, mode="consume")).load()
    writing = rows.select("body", "partition_key").writeStream.format("servicebus").options(**options(target))
    writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_to_the_end(writing.trigger(availableNow=True))
    assert numbers(read(target)) == [*range(200)]
    assert read(source).count() == 0


def test_plain_peeks_stream_too(capture, captured, new_queue, client):
    """As against Azure; a position for each partition all the same."""
    queue = new_queue(Kind.PARTITIONED)
    client.sender(queue).send([encode(b"0", partition_key="a")])
    capture(queue, extensions="never")
    client.sender(queue).send([encode(b"1", partition_key="b")])
    client.sender(queue).send([encode(b"2", partition_key="a")])
    capture(queue, extensions="never")
    assert captured() == [0, 1, 2]
