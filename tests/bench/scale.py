"""What stays the same when there is much of something: rate, memory and start-up.

    python tests/bench/scale.py [--quick] [--cases waiting,queues,...] [--rounds 3]

Each case has two servers, one with little of a thing and one with a lot. They take turns with the same load,
so the ratio of their rates says what the size costs. Memory is what the large server grew by, for each thing.
Both servers are then started again on their data: *ready* is the time until clients may connect, and *first
message* the time until one that waited has arrived.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import load
import psutil
import report
from bendybus_server import READY, START_TIMEOUT_S, configuration, find_command, parse_connection_string
from entities import Admin
from process import Broker, Endpoint
from rich.console import Console
from rich.table import Table
from shape import PLAIN, Shape
from shape_entities import Entity

RESULTS: Final = Path(__file__).with_name("results") / "scale.json"
QUEUE, IDLE, SESSIONS, TOPIC = (
    Entity("parts16"),
    Entity("idle16"),
    Entity("sessions16", sessions=True),
    "topic16",
)
ENTITIES: Final = (QUEUE, IDLE, SESSIONS)
BODY_BYTES: Final = 1024
WINDOW: Final = 500
COUNT: Final = 50_000
# A server that handles fewer a second, after a first minute, counts as stuck.
SLOWEST_RATE: Final = 2_000
TIMEOUT_MIN_S: Final = 60
# Until what has just been done has come to rest.
REST_S: Final = 3
MESSAGES_OF_A_SESSION: Final = 2
# What busy connections have in flight together, each way.
IN_FLIGHT: Final = 500
COPIES: Final = 50_000
QUICKER: Final = 10
ROUNDS, ROUNDS_QUICK = 3, 1


class Server(Broker):
    """A server that can be started again on its data."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__()

    def start(self) -> Endpoint:
        config = self.data / "Config.json"
        config.write_text(json.dumps(configuration(ENTITIES)))
        self.spawn(
            [
                *(find_command(), "serve", "--data", self.data / "namespace", "--config", config),
                *("--port", "0", "--admin-port", "0"),
            ]
        )
        return parse_connection_string(self.wait_for_line(READY, START_TIMEOUT_S).partition("ready ")[2])

    def start_again(self) -> float:
        """Ends the process and starts another on the same data. How long until it was ready."""
        self.end()
        started = time.perf_counter()
        self.endpoint = self.start()
        return time.perf_counter() - started

    def connection_count(self) -> int:
        assert self._process is not None
        connections = psutil.Process(self._process.pid).net_connections("tcp")
        return sum(one.status == psutil.CONN_ESTABLISHED for one in connections)


class Load(NamedTuple):
    """So many messages, or copies of them, in so many seconds."""

    messages: int
    seconds: float


def run(
    server: Server, address: str, mode: str, count: int, shape: Shape = PLAIN, window: int = WINDOW
) -> Load:
    """One run of the load generator."""
    timeout_s = TIMEOUT_MIN_S + count / SLOWEST_RATE
    measured = load.load(server.endpoint, address, mode, count, window, BODY_BYTES, timeout_s, shape)
    return Load(count, measured["seconds"])


# -- what there is much of ----------------------------------------------------------


@contextmanager
def nothing(_server: Server, _size: int) -> Iterator[None]:
    yield


@contextmanager
def waiting_messages(server: Server, size: int) -> Iterator[None]:
    if size:
        run(server, QUEUE.name, "send", size)
    yield


@contextmanager
def queues(server: Server, size: int) -> Iterator[None]:
    # A namespace has at most 10,000 entities, and some are there already.
    Admin(server.endpoint).create(size - len(ENTITIES))
    yield


@contextmanager
def waiting_sessions(server: Server, size: int) -> Iterator[None]:
    run(server, SESSIONS.name, "send", size * MESSAGES_OF_A_SESSION, Shape(sessions=size))
    yield


@contextmanager
def subscriptions(server: Server, size: int) -> Iterator[None]:
    Admin(server.endpoint).create_topic(TOPIC, [f"s{number}" for number in range(size)])
    yield


@contextmanager
def idle_connections(server: Server, size: int) -> Iterator[None]:
    """Receivers of a queue to which nobody sends."""
    if not size:
        yield
        return
    already = server.connection_count()
    command = [str(load.PROGRAM), "--host", server.endpoint.host, "--port", str(server.endpoint.port)]
    command += [
        "--user",
        server.endpoint.user,
        "--password",
        server.endpoint.password,
        "--address",
        IDLE.name,
    ]
    command += ["--mode", "receive", "--connections", str(size), "--window", "1", "--timeout", "3600"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while server.connection_count() < already + size:
            if process.poll() is not None:
                raise load.LoadFailed(f"{size} connections were not accepted")
            time.sleep(REST_S)
        yield
    finally:
        process.kill()
        process.wait()


# -- what is measured ---------------------------------------------------------------


def plain(server: Server, _size: int) -> Load:
    return run(server, QUEUE.name, "both", COUNT)


def behind_backlog(server: Server, _size: int) -> Load:
    return run(server, QUEUE.name, "both", COUNT, Shape(backlog=True))


def every_session(server: Server, size: int) -> Load:
    """Receivers take one free session after the other and empty it; then each gets messages again."""
    count = size * MESSAGES_OF_A_SESSION
    taken = Shape(sessions=size, next_session=True, links=8, backlog=True)
    received = run(server, SESSIONS.name, "receive", count, taken)
    sent = run(server, SESSIONS.name, "send", count, Shape(sessions=size))
    return Load(count, received.seconds + sent.seconds)


def copies(server: Server, size: int) -> Load:
    sent = run(server, TOPIC, "send", COPIES // size)
    return Load(sent.messages * size, sent.seconds)


def over_connections(server: Server, size: int) -> Load:
    each_way = size // 2
    shape = Shape(connections=each_way)
    return run(server, QUEUE.name, "both", COUNT, shape, window=IN_FLIGHT // each_way)


def first_message_s(server: Server, address: str, shape: Shape) -> float:
    started = time.perf_counter()
    run(server, address, "receive", 1, shape, window=1)
    return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Case:
    """`prepare` makes so many of something; `load` is what the server does beside them."""

    title: str
    small: int
    large: int
    prepare: Callable[[Server, int], AbstractContextManager[None]]
    load: Callable[[Server, int], Load]
    kept: bool = True
    """Whether it is there after a restart."""
    waits: tuple[str, Shape] | None = None
    """Where a message waits after a restart."""


CASES: Final = {
    "waiting": Case(
        "waiting messages", 0, 10_000_000, waiting_messages, behind_backlog,
        waits=(QUEUE.name, Shape(backlog=True)),
    ),
    "queues": Case("queues", 10, 10_000, queues, plain),
    "sessions": Case(
        "sessions with messages", 1_000, 100_000, waiting_sessions, every_session,
        waits=(SESSIONS.name, Shape(next_session=True, backlog=True)),
    ),
    "subscriptions": Case("subscriptions of a topic, copies a second", 10, 1_000, subscriptions, copies),
    "idle": Case("idle connections with a receiver", 0, 10_000, idle_connections, plain, kept=False),
    "busy": Case("busy connections", 10, 1_000, nothing, over_connections, kept=False),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Speed:
    """Medians: messages a second, and the server's processor time for each."""

    rate: float
    cpu_us: float


@dataclass(slots=True)
class Outcome:
    """Pairs are little and much."""

    title: str
    sizes: tuple[int, int]
    speeds: tuple[Speed, Speed]
    bytes_each: float | None
    ready_s: tuple[float, float] | None = None
    first_message_s: float | None = None
    """With much, from the start of the process."""


def measure(case: Case, large: int, rounds: int, tell: Callable[[str], None]) -> Outcome:
    with ExitStack() as running:
        small_server = running.enter_context(fresh("scale-small"))
        large_server = running.enter_context(fresh("scale-large"))
        servers = ((small_server, case.small), (large_server, large))
        time.sleep(REST_S)
        idle_bytes = large_server.resident_bytes()
        with ExitStack() as prepared:
            for server, size in servers:
                tell(f"{case.title}: {size:,}")
                prepared.enter_context(case.prepare(server, size))
            time.sleep(REST_S)
            grown_bytes = large_server.resident_bytes() - idle_bytes
            little, much = take_turns(case, servers, rounds, tell)
        bytes_each = None if case.prepare is nothing else grown_bytes / large
        outcome = Outcome(case.title, (case.small, large), (little, much), bytes_each)
        if case.kept:
            outcome.ready_s = (small_server.start_again(), large_server.start_again())
        if case.waits and outcome.ready_s:
            outcome.first_message_s = outcome.ready_s[1] + first_message_s(large_server, *case.waits)
    return outcome


def fresh(name: str) -> Server:
    server = Server(name)
    server.clean_data()
    return server


def take_turns(
    case: Case, servers: Sequence[tuple[Server, int]], rounds: int, tell: Callable[[str], None]
) -> list[Speed]:
    measured: dict[Server, list[Speed]] = {server: [] for server, _ in servers}
    for number in range(rounds):
        for server, size in servers if number % 2 else reversed(servers):
            cpu_before = server.cpu_seconds()
            messages, seconds = case.load(server, size)
            speed = Speed(messages / seconds, (server.cpu_seconds() - cpu_before) / messages * 1e6)
            measured[server].append(speed)
            tell(f"  with {size:,}: {speed.rate:,.0f} a second, {speed.cpu_us:.0f} us")
    return [
        Speed(median(one.rate for one in speeds), median(one.cpu_us for one in speeds))
        for speeds in measured.values()
    ]


def table(outcomes: list[Outcome]) -> Table:
    shown = Table(title="Little and much of something, medians", title_justify="left")
    shown.add_column("of what")
    for heading in ("how many", "a second", "ratio", "CPU us", "bytes each", "ready s", "first\nmessage s"):
        shown.add_column(heading, justify="right")
    for one in outcomes:
        little, much = one.speeds
        shown.add_row(
            one.title,
            "{:,}\n{:,}".format(*one.sizes),
            f"{little.rate:,.0f}\n{much.rate:,.0f}",
            f"{much.rate / little.rate:.2f}",
            f"{little.cpu_us:.0f}\n{much.cpu_us:.0f}",
            f"{one.bytes_each:,.0f}" if one.bytes_each is not None else "",
            "{:.2f}\n{:.2f}".format(*one.ready_s) if one.ready_s else "",
            f"{one.first_message_s:.1f}" if one.first_message_s is not None else "",
        )
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of each size, one round")
    parser.add_argument("--cases", default=",".join(CASES), help="these cases, by name, with commas")
    parser.add_argument("--rounds", type=int, help="repetitions; medians are shown")
    options = parser.parse_args()
    console = Console(highlight=False)
    if unknown := set(options.cases.split(",")) - set(CASES):
        parser.error(f"there is no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    rounds = options.rounds or (ROUNDS_QUICK if options.quick else ROUNDS)
    load.build()
    outcomes, failures = [], []
    for name in options.cases.split(","):
        case = CASES[name]
        large = case.large // QUICKER if options.quick else case.large
        try:
            outcomes.append(measure(case, large, rounds, lambda line: console.print(line, style="dim")))
        except load.LoadFailed as failure:
            failures.append(f"{case.title}: {failure}")
    console.print(table(outcomes))
    for line in failures:
        console.print(line, style="red", markup=False)
    if outcomes and not options.quick:
        results = [asdict(one) for one in outcomes]
        report.write_json(RESULTS, {"machine": report.machine([]), "results": results, "failures": failures})
        console.print(f"written: {RESULTS}", soft_wrap=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
