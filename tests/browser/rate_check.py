"""The broker's end-to-end rate with the portal open on a busy entity, beside the rate without it, in one run.

    PYTHONPATH=tests .venv/bin/python tests/browser/rate_check.py [--rounds 8] [--messages 40000]

Rounds take turns, without and with a page of the entity open in headless Chromium, which refreshes every
two seconds. A round sends messages to a partitioned queue from one process and receives them in another. The
exit status is 1 if the median of the ratios is below 0.97. The browser and the portal share the machine's
cores with the broker, so the rates mean something only where nothing else runs.

What the page costs the broker, the portal and the browser, in seconds of one core per minute, is measured
first, while some messages flow (`--rounds 0`: nothing else). That means something on a busy machine too.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from bendybus.client import BusClient, ClientSettings, encode

LEAST = 0.97
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
BATCH = 100
WATCHED_S = 30.0
# While the costs are measured: enough for every figure of the page to change.
FLOW_PER_S = 200
# A page that has just been opened still has something to do.
SETTLED_AFTER_S = 5.0


def receive(connection_string: str, count: int) -> None:
    with BusClient(ClientSettings.from_connection_string(connection_string)) as client:
        receiver = client.receiver("busy")
        taken = 0
        while taken < count:
            messages = receiver.receive(500, timeout_s=20)
            if not messages:
                sys.exit(f"only {taken} of {count} messages came")
            receiver.complete(messages)
            taken += len(messages)


def measure(connection_string: str, count: int) -> float:
    """Messages per second, from the first send to the last completion."""
    command = [sys.executable, __file__, "--receive", str(count)]
    environment = {**os.environ, "BENDYBUS_CONNECTION_STRING": connection_string}
    receiver = subprocess.Popen(command, env=environment)
    began = time.monotonic()
    with BusClient(ClientSettings.from_connection_string(connection_string)) as client:
        sender = client.sender("busy")
        for number in range(count // BATCH):
            key = f"key-{number % 97}"
            sender.post([encode(b"x" * 200, partition_key=key)] * BATCH, key)
        sender.flush()
    if receiver.wait(300):
        sys.exit("the receiver failed")
    return count / (time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--receive", type=int)
    options = parser.parse_args()
    if options.receive:
        receive(os.environ["BENDYBUS_CONNECTION_STRING"], options.receive)
        return 0
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        config = Path(folder) / "Config.json"
        queue = '{"Name": "busy", "Properties": {"EnablePartitioning": true}}'
        config.write_text(f'{{"UserConfig": {{"Namespaces": [{{"Name": "shop", "Queues": [{queue}]}}]}}}}')
        command = [str(Path(sys.executable).with_name("bendybus")), "serve", "--data", f"{folder}/data"]
        command += ["--port", "0", "--admin-port", "0", "--config", str(config), "--log-level", "error"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                connection_string = server.stdout.readline().removeprefix("ready ").strip()
                link = server.stdout.readline().split()[1]
                return compare(playwright, connection_string, link, options, server.pid)
            finally:
                server.terminate()


def cpu_s(pid: int) -> float:
    """What the process has used of all cores."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def below(pid: int) -> list[int]:
    """The process and all that it has started."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def costs(broker: int) -> dict[str, float]:
    """Seconds of one core that each part uses in a minute."""
    portal = [pid for pid in below(broker) if pid != broker]
    browser = [pid for pid in below(os.getpid()) if b"chrom" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    parts = {"broker": [broker], "portal": portal, "browser": browser}
    before = {name: sum(map(cpu_s, pids)) for name, pids in parts.items()}
    time.sleep(WATCHED_S)
    return {name: (sum(map(cpu_s, pids)) - before[name]) * 60 / WATCHED_S for name, pids in parts.items()}


@contextmanager
def flow(connection_string: str) -> Iterator[None]:
    """Messages that come and go, at a rate that leaves the machine time."""
    ended = threading.Event()

    def send_and_receive() -> None:
        with BusClient(ClientSettings.from_connection_string(connection_string)) as client:
            sender, receiver = client.sender("busy"), client.receiver("busy")
            number = 0
            while not ended.wait(10 / FLOW_PER_S):
                for _ in range(10):
                    number += 1
                    sender.post(
                        [encode(b"x" * 200, partition_key=f"key-{number % 97}")], f"key-{number % 97}"
                    )
                sender.flush()
                messages = receiver.receive(10, timeout_s=5)
                # Some stay, so that the depth and the ages change too.
                receiver.complete(messages[: 10 if number % 50 else 8])

    thread = threading.Thread(target=send_and_receive)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def tell_costs(context, url: str, connection_string: str, pid: int) -> None:
    with flow(connection_string):
        time.sleep(SETTLED_AFTER_S)
        without = costs(pid)
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector(".partition")
        time.sleep(SETTLED_AFTER_S)
        opened = costs(pid)
        page.close()
    for name, used in opened.items():
        print(
            f"{name}: {used:.2f} s of a core in a minute with a page, {without[name]:.2f} s without: "
            f"{used - without[name]:+.2f} s"
        )


def compare(playwright, connection_string: str, link: str, options: argparse.Namespace, pid: int) -> int:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
    context = browser.new_context()
    context.new_page().goto(link)
    context.pages[0].goto("about:blank")
    origin = re.match(r"http://[^/]+", link)
    assert origin is not None
    url = f"{origin[0]}/portal/entity?path=busy"
    measure(connection_string, options.messages // 2)  # everything has been used once
    tell_costs(context, url, connection_string, pid)
    ratios: list[float] = []
    cost_ratios: list[float] = []
    for turn in range(options.rounds):
        # Each round has both, and which comes first changes.
        rates, costs = {}, {}
        for opened in (False, True) if turn % 2 else (True, False):
            page = context.new_page()
            if opened:
                page.goto(url)
                page.wait_for_selector(".partition")
            time.sleep(SETTLED_AFTER_S)
            before = cpu_s(pid)
            rates[opened] = measure(connection_string, options.messages)
            costs[opened] = (cpu_s(pid) - before) / options.messages * 1e6
            page.close()
        ratios.append(rates[True] / rates[False])
        cost_ratios.append(costs[False] / costs[True])
        print(
            f"without {rates[False]:,.0f}/s, with the portal {rates[True]:,.0f}/s: {ratios[-1]:.3f}; "
            f"the broker's time for a message {costs[False]:.1f} and {costs[True]:.1f} us: "
            f"{cost_ratios[-1]:.3f}"
        )
    browser.close()
    if not ratios:
        return 0
    rate, cost = statistics.median(ratios), statistics.median(cost_ratios)
    print(f"median {rate:.3f} by rate, {cost:.3f} by the broker's time; at least {LEAST} is wanted")
    return 0 if rate >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
