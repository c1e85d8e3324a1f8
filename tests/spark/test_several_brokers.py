"""Spark against a server with two broker processes: its source and its sink see one server (N-02, S-01).

The connections of Spark's tasks are spread over both processes, and each has half of the partitions of each
queue. One of them keeps the lease of a consumer, for both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from pyspark.errors import StreamingQueryException

from bendybus.client import encode
from fix_server import ServerProcess, namespace
from spark.conftest import numbers
from spark.test_data_loss import Stream, await_messages
from spark.test_streaming import run_to_the_end

pytestmark = pytest.mark.timeout(400)

QUEUES = {name: {"EnablePartitioning": True} for name in ("source", "target", "delayed")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("brokers"), namespace(QUEUES), ("--brokers", "2"))
    server.start()
    yield server
    assert server.stop() == os.EX_OK
    server.refuse_trouble()


@pytest.mark.row("N-02")
@pytest.mark.row("S-01")
def test_a_stream_consumes_a_queue_of_several_brokers_and_writes_to_another(
    spark, options, fill, read, tmp_path
):
    def stream(checkpoint: str) -> None:
        rows = spark.readStream.format("servicebus").options(**options("source", mode="consume")).load()
        writing = rows.select("body", "partition_key").writeStream.format("servicebus")
        writing = writing.options(**options("target")).trigger(availableNow=True)
        run_to_the_end(writing.option("checkpointLocation", str(tmp_path / checkpoint)))

    fill("source", 200, keys=32)
    stream("first")
    assert numbers(read("target")) == [*range(200)]
    assert read("source").count() == 0

    fill("source", 100, first=200, keys=32)
    with pytest.raises(StreamingQueryException, match="has the lease"):
        stream("second")
    stream("first")
    assert numbers(read("target")) == [*range(300)]
    assert read("source").count() == 0


@pytest.mark.row("N-02")
@pytest.mark.row("S-03")
def test_a_stream_goes_on_if_scheduled_messages_became_due_at_any_broker(server, client):
    """About the gaps in the numbers: test_data_loss.py."""
    stream = Stream(server, "delayed")
    assert stream.run() == []
    due = int(time.time() * 1000 + 200)
    for key in range(32):
        message = encode(b"%d" % key, partition_key=str(key), scheduled_enqueue_time_ms=due)
        client.sender("delayed").send([message], str(key))
    await_messages(client, "delayed", 32)
    assert sorted(map(int, stream.run())) == [*range(32)]
    assert stream.run() == []
