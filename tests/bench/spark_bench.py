"""Spark against the plain loop: rows a second through a queue of 16 partitions, both ways.

    python tests/bench/spark_bench.py --quick

Messages of 1 KB. Spark writes them all, reads them in one batch, streams them to
Parquet and writes them back into another queue. Beside it, against the same broker
in the same run, the loops of `azure-servicebus`: one message at a time as its
documentation has it, and its fastest way, in batches. The ratios are to the plain
loop; 10 is what is wanted of reading and of writing. The broker alone: run.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from process import CACHE

from fix_server import ServerProcess, namespace
from pyspark_servicebus import spark_session

BODY_BYTES: Final = 1024
ROWS: Final = 1_000_000
QUICK_ROWS: Final = 100_000

# Enough for a steady rate; a million one by one would take an hour.
LOOP_COUNT: Final = 2_000
BATCHED_COUNT: Final = 20_000
WANTED_RATIO: Final = 10

SPARK_SOURCE, SPARK_COPY, PLAIN = "spark", "copy", "plain"


def rate(count: int, work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


# -- the SDK ----------------------------------------------------------------------------


def sdk_rates(connection_string: str) -> dict[str, float]:
    body = b"x" * BODY_BYTES
    with ServiceBusClient.from_connection_string(connection_string) as client:
        with client.get_queue_sender(PLAIN) as sender:
            sender.send_messages(ServiceBusMessage(body))

            def send_singly() -> None:
                for _ in range(LOOP_COUNT - 1):
                    sender.send_messages(ServiceBusMessage(body))

            def send_batches() -> None:
                batch = sender.create_message_batch()
                for _ in range(BATCHED_COUNT):
                    try:
                        batch.add_message(ServiceBusMessage(body))
                    except ValueError:
                        sender.send_messages(batch)
                        batch = sender.create_message_batch()
                        batch.add_message(ServiceBusMessage(body))
                sender.send_messages(batch)

            rates = {"send_loop": rate(LOOP_COUNT - 1, send_singly)}
            with client.get_queue_receiver(PLAIN, max_wait_time=10) as receiver:

                def receive_singly() -> None:
                    for count, message in enumerate(receiver, 1):
                        receiver.complete_message(message)
                        if count == LOOP_COUNT:
                            return

                rates["receive_loop"] = rate(LOOP_COUNT, receive_singly)
            rates["send_batches"] = rate(BATCHED_COUNT, send_batches)
        deleting = client.get_queue_receiver(
            PLAIN, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=1000
        )
        with deleting:

            def receive_batches() -> None:
                left = BATCHED_COUNT
                while left:
                    left -= len(deleting.receive_messages(min(1000, left), max_wait_time=10))

            rates["receive_and_delete"] = rate(BATCHED_COUNT, receive_batches)
    return rates


# -- Spark ------------------------------------------------------------------------------


def spark_rates(connection_string: str, rows: int, folder: Path) -> dict[str, float]:
    spark = spark_session("bench", "local[*]", {"spark.ui.enabled": "false", "spark.driver.memory": "3g"})
    spark.sparkContext.setLogLevel("ERROR")

    def options(entity: str) -> dict[str, str]:
        return {"connectionString": connection_string, "entity": entity}

    def read(entity: str):
        return spark.read.format("servicebus").options(**options(entity)).load()

    def write_to(entity: str, rows_to_send) -> None:
        rows_to_send.write.format("servicebus").options(**options(entity)).mode("append").save()

    def body(count: int):
        text = f"rpad(cast(id as string), {BODY_BYTES}, 'x')"
        return spark.range(count, numPartitions=4).selectExpr(f"cast({text} as binary) as body")

    def capture() -> None:
        stream = spark.readStream.format("servicebus").options(**options(SPARK_SOURCE)).load()
        writing = stream.writeStream.format("parquet").option(
            "checkpointLocation", str(folder / "checkpoint")
        )
        writing.trigger(availableNow=True).start(str(folder / "sink")).awaitTermination()

    # Workers start and code is compiled at the first use; that is not what is measured.
    write_to(PLAIN, body(1000))
    read(PLAIN).write.format("noop").mode("overwrite").save()
    rates = {
        "write": rate(rows, lambda: write_to(SPARK_SOURCE, body(rows))),
        "read": rate(rows, lambda: read(SPARK_SOURCE).write.format("noop").mode("overwrite").save()),
        "stream_to_parquet": rate(rows, capture),
        "write_back": rate(
            rows, lambda: write_to(SPARK_COPY, read(SPARK_SOURCE).select("body", "message_id"))
        ),
    }
    counted = {
        "captured": spark.read.parquet(str(folder / "sink")).select("body").distinct().count(),
        "written back": read(SPARK_COPY).select("message_id").distinct().count(),
    }
    spark.stop()
    for name, count in counted.items():
        assert count == rows, f"{count} of {rows} were {name}"
    return rates


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows")
    parser.add_argument("--json", type=Path, help="write what was measured there too")
    given = parser.parse_args()
    rows = QUICK_ROWS if given.quick else given.rows
    folder = CACHE / "spark"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    roomy = {"EnablePartitioning": True, "MaxSizeInMegabytes": 5120}
    server = ServerProcess(folder, namespace(dict.fromkeys((SPARK_SOURCE, SPARK_COPY, PLAIN), roomy)))
    server.start()
    try:
        sdk = sdk_rates(server.connection_string)
        spark = spark_rates(server.connection_string, rows, folder)
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
    ratios = {
        "write": spark["write"] / sdk["send_loop"],
        "read": spark["read"] / sdk["receive_loop"],
        "write to SDK's batches": spark["write"] / sdk["send_batches"],
        "read to SDK's receive-and-delete": spark["read"] / sdk["receive_and_delete"],
    }
    print(f"{rows} rows of {BODY_BYTES} bytes, 16 partitions; rows a second")  # noqa: T201
    for name, value in {**{f"azure-servicebus {k}": v for k, v in sdk.items()}, **spark}.items():
        print(f"  {name:<36} {value:>10,.0f}")  # noqa: T201
    for name, value in ratios.items():
        print(f"  ratio, {name:<29} {value:>10.1f}")  # noqa: T201
    if given.json is not None:
        given.json.write_text(
            json.dumps({"rows": rows, "sdk": sdk, "spark": spark, "ratios": ratios}, indent=2)
        )
    return 0 if min(ratios["read"], ratios["write"]) >= WANTED_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
