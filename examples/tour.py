"""A short tour: an unmodified Azure SDK against a broker of its own, crash included.

Run it with `make demo`. It starts `bendybus serve` in a temporary folder, uses
nothing but `azure-servicebus` to talk to it, and ends by itself.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusSubQueue,
)
from rich.console import Console
from rich.table import Table

CONFIG = Path(__file__).with_name("Config.json")
QUEUE = "orders"
CUSTOMERS = ("ada", "grace", "edsger", "barbara")

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


def partition_of(message: ServiceBusReceivedMessage) -> int:
    """The topmost 16 bits of a sequence number are the partition's number."""
    return (message.sequence_number or 0) >> 48


def send_orders(client: ServiceBusClient) -> None:
    with client.get_queue_sender(QUEUE) as sender:
        for number in range(20):
            customer = CUSTOMERS[number % len(CUSTOMERS)]
            sender.send_messages(
                ServiceBusMessage(f"order {number} of {customer}", partition_key=customer, subject=customer)
            )
        sender.send_messages([ServiceBusMessage(f"note {number}") for number in range(3)])
        for number in range(3, 8):
            sender.send_messages(ServiceBusMessage(f"note {number}"))


def show_partitions(client: ServiceBusClient) -> None:
    with client.get_queue_receiver(QUEUE) as receiver:
        waiting = receiver.peek_messages(max_message_count=100)
    table = Table(
        "partition", "messages", "keys", title=f"{len(waiting)} messages in a queue of 16 partitions"
    )
    for partition, count in sorted(Counter(map(partition_of, waiting)).items()):
        keys = {str(message.partition_key) for message in waiting if partition_of(message) == partition}
        table.add_row(
            str(partition), str(count), ", ".join(sorted(keys - {"None"})) or "[dim]none: in turn[/]"
        )
    console.print(table)


def work_through(client: ServiceBusClient) -> None:
    """Complete the orders, keep each customer's in order, and refuse one."""
    orders: dict[str, list[str]] = {}
    with client.get_queue_receiver(QUEUE, max_wait_time=1) as receiver:
        for message in receiver:
            text = str(message)
            if text == "order 13 of grace":
                receiver.dead_letter_message(message, reason="Unlucky", error_description="13 is not shipped")
                continue
            if message.subject:
                orders.setdefault(message.subject, []).append(text.split()[1])
            receiver.complete_message(message)
    for customer, numbers in orders.items():
        console.print(f"  {customer:8} {' -> '.join(numbers)}")
    with client.get_queue_receiver(
        QUEUE, sub_queue=ServiceBusSubQueue.DEAD_LETTER, max_wait_time=1
    ) as receiver:
        for message in receiver:
            console.print(
                f"  dead letter: '{message}' because {message.dead_letter_reason}: "
                f"{message.dead_letter_error_description}"
            )
            receiver.complete_message(message)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bendybus-tour-") as folder:
        process, connection_string = start(Path(folder), port=0)
        port = int(connection_string.split(";")[0].rpartition(":")[2])
        try:
            console.rule("1. An unmodified Azure SDK sends")
            console.print(connection_string, soft_wrap=True)
            with ServiceBusClient.from_connection_string(connection_string) as client:
                send_orders(client)
                show_partitions(client)

            console.rule("2. kill -9, and start again on the same folder")
            process.send_signal(signal.SIGKILL)
            process.wait()
            process, connection_string = start(Path(folder), port)
            with ServiceBusClient.from_connection_string(connection_string) as client:
                show_partitions(client)

                console.rule("3. Received, in order for each customer")
                work_through(client)
            console.rule("Done: nothing lost, nothing left")
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
