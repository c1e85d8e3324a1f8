"""A tour in about a minute: orders from an unmodified SDK, a crash, and pipelines on Spark.

Run it with `make demo`; docs/tour.md tells the same steps. It starts `bendybus serve` in a
temporary folder, lets `azure-servicebus` send and receive, captures the queue with Spark,
reports on it, and brings dead letters back to life. It ends by itself and leaves the report.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from pyspark_servicebus import spark_session
from pyspark_servicebus.pipelines import Bus, Capture, Report, Run, Triage, captured

CONFIG = Path(__file__).with_name("Config.json")
QUEUE = "orders"
# Most orders are Ada's: that is what skew is.
CUSTOMERS = ("ada", "ada", "ada", "ada", "ada", "grace", "edsger", "barbara")
ORDERS = 240
REPORT = Path(".cache", "tour", "report.html")

console = Console()


def start(data: Path, port: int) -> tuple[subprocess.Popen[str], str]:
    """A broker on its data folder; gives its process and its connection string."""
    command = [str(Path(sys.executable).with_name("bendybus")), "serve", "--data", str(data)]
    command += ["--port", str(port), "--admin-port", "0", "--config", str(CONFIG)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    words = process.stdout.readline().split(maxsplit=1)
    if not words or words[0] != "ready":
        raise SystemExit("the broker did not start")
    return process, words[1].strip()


def send_orders(client: ServiceBusClient) -> None:
    with client.get_queue_sender(QUEUE) as sender:
        for first in range(0, ORDERS, len(CUSTOMERS)):
            for place, customer in enumerate(CUSTOMERS):
                number = first + place
                message = ServiceBusMessage(
                    f"order {number} of {customer}", partition_key=customer, subject=customer
                )
                sender.send_messages(message)


def show_partitions(client: ServiceBusClient) -> None:
    with client.get_queue_receiver(QUEUE) as receiver:
        waiting = receiver.peek_messages(max_message_count=ORDERS)
    table = Table(
        "partition", "messages", "keys", title=f"{len(waiting)} messages, in a queue of 16 partitions"
    )
    for partition, count in sorted(Counter(map(partition_of, waiting)).items()):
        keys = {str(message.partition_key) for message in waiting if partition_of(message) == partition}
        table.add_row(str(partition), str(count), ", ".join(sorted(keys)))
    console.print(table)


def partition_of(message: ServiceBusReceivedMessage) -> int:
    """The topmost 16 bits of a sequence number are the partition's number."""
    return (message.sequence_number or 0) >> 48


def work_through(client: ServiceBusClient, *, strict: bool) -> None:
    """Complete the orders in each customer's order; a strict worker refuses every thirteenth."""
    last: dict[str, int] = {}
    done = refused = 0
    with client.get_queue_receiver(QUEUE, max_wait_time=1, prefetch_count=100) as receiver:
        for message in receiver:
            number, customer = int(str(message).split()[1]), message.subject or ""
            if strict and number % 13 == 0:
                receiver.dead_letter_message(message, reason="Unlucky", error_description="13 is not shipped")
                refused += 1
                continue
            if strict:
                assert last.get(customer, -1) < number, "a customer's orders come in their order"
                last[customer] = number
            receiver.complete_message(message)
            done += 1
    console.print(f"  {done} orders done, {refused} refused")


def capture(spark: SparkSession, bus: Bus, folder: Path) -> None:
    summary = Capture(bus=bus, entity=QUEUE, path=str(folder)).run(spark, Run())
    console.print(f"  {summary.messages} messages captured in {summary.seconds:.1f} s")
    rows = captured(spark, str(folder))
    rows.groupBy("subject").count().orderBy("count", ascending=False).show()


def report(spark: SparkSession, bus: Bus, folder: Path) -> None:
    made = Report(bus=bus, output=REPORT, entities=(QUEUE,), captured=str(folder)).run(spark, Run())
    for section in made.details["sections"]:
        console.print(f"  {section['title']}: {section['messages']} messages, skew {section['skew']}")
    console.print(f"  the page with its plots: {REPORT.absolute()}")


def triage(spark: SparkSession, bus: Bus, folder: Path) -> None:
    checkpoint = str(folder / "triage")
    summary = Triage(
        bus=bus, entity=QUEUE, action="resubmit", reasons=("Unlucky",), checkpoint=checkpoint
    ).run(spark, Run())
    for group in summary.details["groups"]:
        console.print(f"  {group['messages']} letters: {group['reason']}, {group['example']}")
    console.print(f"  {summary.messages} resubmitted")


def main() -> None:
    began = time.monotonic()
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bendybus-tour-") as name:
        folder = Path(name)
        process, connection_string = start(folder / "data", port=0)
        port = int(connection_string.split(";")[0].rpartition(":")[2])
        try:
            console.rule("1. An unmodified Azure SDK sends orders")
            console.print(connection_string, soft_wrap=True)
            with ServiceBusClient.from_connection_string(connection_string) as client:
                send_orders(client)

            console.rule("2. kill -9, and start again on the same folder")
            process.send_signal(signal.SIGKILL)
            process.wait()
            process, connection_string = start(folder / "data", port)
            bus = Bus(connection_string)
            with ServiceBusClient.from_connection_string(connection_string) as client:
                show_partitions(client)

                console.rule("3. A stream captures the queue into Parquet")
                settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
                spark = spark_session("tour", settings={**settings, "spark.sql.shuffle.partitions": "2"})
                capture(spark, bus, folder / "captured")

                console.rule("4. A worker receives, in order for each customer, and refuses some")
                work_through(client, strict=True)

                console.rule("5. A report shows the skew, and why letters are dead")
                report(spark, bus, folder / "captured")

                console.rule("6. Dead letters are triaged and resubmitted")
                triage(spark, bus, folder)
                work_through(client, strict=False)
                spark.stop()
            console.rule(f"Done in {time.monotonic() - began:.0f} s: nothing lost, nothing left")
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
