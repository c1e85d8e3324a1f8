"""azure-servicebus end to end: one process sends, another receives and completes, at the same time.

    python python_load.py CONNECTION_STRING QUEUE COUNT

Prints a line of JSON; the exit status is 1 when a message was missing or came twice.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time

from azure.servicebus import ServiceBusClient, ServiceBusMessage

BATCH = 100
BODY = bytes(1024)
# With nothing for this long, the rest is missing.
IDLE_S = 20


def send(connection_string: str, queue: str, count: int) -> None:
    with ServiceBusClient.from_connection_string(connection_string) as client:
        sender = client.get_queue_sender(queue)
        with sender:
            for first in range(0, count, BATCH):
                numbers = range(first, min(first + BATCH, count))
                sender.send_messages([ServiceBusMessage(BODY, message_id=str(number)) for number in numbers])


def receive(
    connection_string: str, queue: str, count: int, sender: multiprocessing.Process
) -> tuple[list[str], float]:
    """The ids of what came, each completed, and the seconds since the sender was started."""
    received: list[str] = []
    with ServiceBusClient.from_connection_string(connection_string) as client:
        receiver = client.get_queue_receiver(queue)
        with receiver:
            sender.start()
            began = time.perf_counter()
            while len(received) < count:
                messages = receiver.receive_messages(max_message_count=BATCH, max_wait_time=IDLE_S)
                if not messages:
                    break
                for message in messages:
                    received.append(str(message.message_id))
                    receiver.complete_message(message)
            seconds = time.perf_counter() - began
    return received, seconds


def main() -> int:
    connection_string, queue, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sender = multiprocessing.Process(target=send, args=(connection_string, queue, count))
    received, seconds = receive(connection_string, queue, count, sender)
    sender.join()
    distinct = len(set(received))
    missing, duplicates = count - distinct, len(received) - distinct
    result = {"received": len(received), "seconds": seconds, "rate": distinct / seconds}
    sys.stdout.write(json.dumps({**result, "missing": missing, "duplicates": duplicates}) + "\n")
    return 1 if missing or duplicates or sender.exitcode else 0


if __name__ == "__main__":
    sys.exit(main())
