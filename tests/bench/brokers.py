"""Several brokers: how the rate of one queue grows with their number.

    python tests/bench/brokers.py [--quick] [--kinds sqlite,postgresql] [--same-clients] [--share 0.2]
        [--rounds 5] [--count 40000] [--results FILE]

One queue of 16 partitions over four messaging stores is served by one, two and four brokers, and clients are
spread over all of them: the same number of clients for each broker, or with `--same-clients` the same number
for any number of brokers. Each broker process gets the same share of a core by a control group, so that a
machine with two cores shows what more cores would give. PostgreSQL and the load generator share what is left.
The numbers of brokers stand side by side and take turns.

`sqlite`: `bendybus serve --brokers N`, on one machine. `postgresql`: N times `bendybus serve --cluster`. What
stands beside several brokers is a server with one broker and the same stores, which pays for no cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final, Protocol

import load
import psutil
import psycopg
from bendybus_server import READY, START_TIMEOUT_S, Bendybus, find_command, parse_connection_string
from measures import PER_MESSAGES
from process import CACHE, Broker, BrokerFailed, Endpoint
from rich.console import Console
from rich.table import Table
from shape import Shape
from shape_entities import Entity

sys.path.insert(0, str(Path(__file__).parents[1]))
from fix_postgres import Postgres, cluster, programs

RESULTS: Final = Path(__file__).with_name("results") / "brokers.json"
GROUPS: Final = Path("/sys/fs/cgroup/cpu")
# Short, so that a broker that has used up its share waits for milliseconds and not for a tenth of a second.
# Not shorter: a broker runs for a fifth of it at a time, and a turn of its event loop takes milliseconds.
PERIOD_US: Final = 25_000

QUEUE: Final = "parts16"
SINGLE: Final = "single"
STORES: Final = 4
NUMBERS: Final = (1, 2, 4)
KINDS: Final = ("sqlite", "postgresql")
# Senders, and as many receivers, for each broker. They keep it busy.
CONNECTIONS_EACH: Final = 4
# With `--same-clients`: enough for four brokers.
CONNECTIONS: Final = 16
WINDOW: Final = 500
BODY_BYTES: Final = 1024
SHAPES: Final = {
    "no key": Shape(),
    "key": Shape(keys=1000),
    "half with a key": Shape(keys=1000, half_keyed=True),
}
CROSSING: Final = Shape(connections=4)
# For each broker, so that each number of brokers is measured for about as long. Much more than senders have
# in flight: what they send first fills their windows, in reads that are larger than later ones.
COUNT, COUNT_QUICK = 40_000, 3_000
CROSSING_COUNT: Final = 12_000
ROUNDS, ROUNDS_QUICK = 5, 1
TIMEOUT_S: Final = 180
# Stores that have moved are back at their owners by then.
AFTER_FAILURE_S: Final = 15
# Of a core, for each broker. PostgreSQL needs more than four such brokers do, and shares the rest of the
# machine with the clients.
SHARES: Final = {"sqlite": 0.2, "postgresql": 0.12}
_SPIN: Final = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
# So many times the rate of one broker is the aim (N-06).
WANTED: Final = {2: 1.8, 4: 3.2}


class Deployment(Protocol):
    """So many brokers that serve the queue."""

    endpoint: Endpoint

    def process_ids(self) -> list[int]:
        """Of the brokers."""


class OneMachine(Bendybus):
    """`bendybus serve --brokers N`; with one broker, a plain server."""

    def __init__(self, number: int) -> None:
        super().__init__(STORES, (Entity(QUEUE),))
        self.number = number
        self.data = CACHE / f"brokers-{number}-data"
        self.log = CACHE / f"brokers-{number}.log"

    def store_options(self) -> list[str]:
        several = ["--brokers", str(self.number)] if self.number > 1 else []
        return [*super().store_options(), *several]

    def process_ids(self) -> list[int]:
        assert self._process is not None
        if self.number == 1:
            return [self._process.pid]
        return [child.pid for child in self.children()]


class Member(Broker):
    """One broker on PostgreSQL."""

    def __init__(self, name: str, options: Sequence[str]) -> None:
        super().__init__()
        self.name = name
        self.data = CACHE / f"{name}-data"
        self.log = CACHE / f"{name}.log"
        self._options = options
        self.connection_string = ""

    def start(self) -> Endpoint:
        self.spawn(
            [
                *(find_command(), "serve", "--data", self.clean_data() / "namespace", *self._options),
                *("--port", "0", "--admin-port", "0"),
            ]
        )
        self.connection_string = self.wait_for_line(READY, START_TIMEOUT_S).partition("ready ")[2]
        return parse_connection_string(self.connection_string)

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid


class OnPostgres:
    """A cluster of brokers on one PostgreSQL server; with one broker, a plain server on the same stores."""

    def __init__(self, number: int, postgres: Postgres, exits: ExitStack) -> None:
        self._postgres = postgres
        self._database = postgres.new_database()
        names = [f"{number}-{letter}" for letter in "abcd"[:number]]
        self._members = [Member(f"member-{name}", self._options(name, number)) for name in names]
        for member in self._members:
            exits.enter_context(member)
        self.create_queue(QUEUE, "--partitioned")
        if number > 1:
            self._wait_for_owners(number)
        first, *others = [member.endpoint for member in self._members]
        self.endpoint = replace(first, further_ports=tuple(other.port for other in others))
        self.endpoints = [first, *others]

    def _options(self, name: str, number: int) -> list[str]:
        urls = [self._postgres.url(self._database, schema=f"s{n}", name=f"s{n}") for n in range(STORES)]
        stores = [option for url in urls for option in ("--store", url)]
        if number == 1:
            return stores
        return ["--cluster", self._postgres.url(self._database), "--broker", name, *stores]

    def create_queue(self, name: str, *options: str) -> None:
        environment = {**os.environ, "BENDYBUS_CONNECTION_STRING": self._members[0].connection_string}
        command = [str(find_command()), "queue", "create", name, *options, "--lock-duration", "PT5M"]
        for attempt in range(20):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if not done.returncode:
                return
            # While no broker leads, or none owns a store, this can be repeated.
            time.sleep(0.5 * (attempt < 19))
        raise BrokerFailed(f"the queue was not created: {done.stderr.strip()[-300:]}")

    def _wait_for_owners(self, number: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with psycopg.connect(self._postgres.url(self._database)) as connection:
                rows = [
                    connection.execute(f"SELECT broker FROM s{n}.owner").fetchone() for n in range(STORES)
                ]
            if len({row[0] for row in rows if row is not None}) == number:
                return
            time.sleep(0.1)
        raise BrokerFailed(f"the stores were not spread over {number} brokers")

    def process_ids(self) -> list[int]:
        return [member.process_id for member in self._members]


# -- shares of a core --------------------------------------------------------------


@contextmanager
def limited(processes: Sequence[int], share: float) -> Iterator[None]:
    """Each of these processes gets this share of a core."""
    parent = _own_group()
    groups: list[Path] = []
    try:
        for process_id in processes:
            group = parent / f"bendybus-bench-{process_id}"
            group.mkdir()
            groups.append(group)
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * share)))
            (group / "cgroup.procs").write_text(str(process_id))
        yield
    finally:
        for group in groups:
            for process_id in (group / "cgroup.procs").read_text().split():
                (parent / "cgroup.procs").write_text(process_id)
            group.rmdir()


@contextmanager
def busy_cores() -> Iterator[None]:
    """Every core always has something to do, of no importance.

    Otherwise one broker would have a core that nobody else uses, with its caches, and four would not.
    """
    command = [sys.executable, "-c", _SPIN]
    spinning = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _own_group() -> Path:
    """The control group of this process. Its limits are kept."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    return GROUPS / next(path for _, controllers, path in lines if "cpu" in controllers.split(",")).strip("/")


def why_not() -> str:
    """Why brokers cannot be limited here; empty if they can."""
    if not (GROUPS / "cpu.cfs_quota_us").exists() and not (GROUPS / "cpu.cfs_period_us").exists():
        return f"there is no {GROUPS} with CPU quotas here"
    return "" if os.access(GROUPS, os.W_OK) else f"{GROUPS} cannot be written; run this as root"


# -- measuring ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Round:
    """What one run of the load generator gave."""

    rate: float
    cpu_s: float
    """Of all brokers, for 100,000 messages."""
    used: tuple[float, ...]
    """By each broker, of its share."""
    clients: float
    """How many cores the load generator used."""


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of all rounds."""

    kind: str
    shape: str
    brokers: int
    rate: float
    ratio: float
    """To one broker, in the same round."""
    cpu_s: float
    """Of all brokers, for 100,000 messages."""
    used: float
    """Of its share of a core, by the broker that used least. What is not used was waited for."""


def measure(kind: str, options: argparse.Namespace, say: Callable[[str], None]) -> list[Row]:
    share = options.share or SHARES[kind]
    with ExitStack() as exits:
        found = _deployments(kind, exits)
        for deployment in found.values():
            load.load(deployment.endpoint, QUEUE, "both", COUNT, WINDOW, BODY_BYTES, TIMEOUT_S)
        taken: dict[tuple[str, int], list[Round]] = {}
        for number in range(options.rounds):
            for shape_name, shape in SHAPES.items():
                for brokers in NUMBERS if number % 2 == 0 else reversed(NUMBERS):
                    connections = CONNECTIONS if options.same_clients else brokers * CONNECTIONS_EACH
                    spread = replace(shape, connections=connections)
                    one = _measure_again(found[brokers], spread, brokers * options.count, share)
                    say(
                        f"{kind}, {shape_name}, {brokers}: {one.rate:,.0f}/s, "
                        f"CPU {one.cpu_s:.2f} s per 100,000, "
                        f"used {' '.join(f'{part:.0%}' for part in one.used)}, "
                        f"clients {one.clients:.2f} cores"
                    )
                    taken.setdefault((shape_name, brokers), []).append(one)
    median = statistics.median
    return [
        Row(
            *(kind, shape_name, brokers, median([one.rate for one in rounds])),
            median([one.rate / alone.rate for one, alone in zip(rounds, taken[shape_name, 1], strict=True)]),
            median([one.cpu_s for one in rounds]),
            median([min(one.used) for one in rounds]),
        )
        for shape_name in SHAPES
        for brokers in NUMBERS
        for rounds in [taken[shape_name, brokers]]
    ]


def measure_crossing(rounds: int) -> dict[str, float]:
    """CPU seconds of all brokers for 100,000 messages of a queue with one partition, medians of the rounds.

    Clients send to and receive from its owner, or the other broker of a cluster of two. Nothing is limited.
    """
    with ExitStack() as exits:
        postgres = exits.enter_context(cluster(fsync=True, parent=CACHE))
        brokers = OnPostgres(2, postgres, exits)
        brokers.create_queue(SINGLE, "--no-partitioned")
        costs: dict[tuple[str, int], list[float]] = {}
        for number in range(rounds + 1):
            for mode, (place, endpoint) in product(("send", "receive"), enumerate(brokers.endpoints)):
                if mode == "receive":
                    load.load(
                        endpoint, SINGLE, "send", CROSSING_COUNT, WINDOW, BODY_BYTES, TIMEOUT_S, CROSSING
                    )
                before = sum(map(_used_s, brokers.process_ids()))
                load.load(endpoint, SINGLE, mode, CROSSING_COUNT, WINDOW, BODY_BYTES, TIMEOUT_S, CROSSING)
                used_s = sum(map(_used_s, brokers.process_ids())) - before
                if mode == "send":
                    load.load(
                        endpoint, SINGLE, "receive", CROSSING_COUNT, WINDOW, BODY_BYTES, TIMEOUT_S, CROSSING
                    )
                if number:  # the first round warms up
                    costs.setdefault((mode, place), []).append(used_s / CROSSING_COUNT * PER_MESSAGES)
    median = {key: statistics.median(measured) for key, measured in costs.items()}
    # Who owns the one partition is known by what is cheaper.
    owner = min(range(2), key=lambda place: median["send", place])
    return {
        f"{mode} {where}": median[mode, place]
        for mode in ("send", "receive")
        for where, place in (("at the owner", owner), ("elsewhere", 1 - owner))
    }


def _deployments(kind: str, exits: ExitStack) -> dict[int, Deployment]:
    if kind == "sqlite":
        return {number: exits.enter_context(OneMachine(number)) for number in NUMBERS}
    if programs() is None:
        raise BrokerFailed("no PostgreSQL here: neither PyPI's pgserver nor Debian's postgresql")
    # On the disk that everything else is measured on.
    postgres = exits.enter_context(cluster(fsync=True, parent=CACHE))
    return {number: OnPostgres(number, postgres, exits) for number in NUMBERS}


def _measure_again(deployment: Deployment, shape: Shape, count: int, share: float) -> Round:
    """`_measure_one`, twice if the machine stood still for seconds: brokers then presume each other dead."""
    try:
        return _measure_one(deployment, shape, count, share)
    except load.LoadFailed:
        time.sleep(AFTER_FAILURE_S)
        load.drain(deployment.endpoint, QUEUE, BODY_BYTES, TIMEOUT_S)
        return _measure_one(deployment, shape, count, share)


def _measure_one(deployment: Deployment, shape: Shape, count: int, share: float) -> Round:
    processes = deployment.process_ids()
    with limited(processes, share):
        before = [_used_s(each) for each in processes]
        measured = load.load(deployment.endpoint, QUEUE, "both", count, WINDOW, BODY_BYTES, TIMEOUT_S, shape)
        used_s = [_used_s(each) - earlier for each, earlier in zip(processes, before, strict=True)]
    seconds = measured["seconds"]
    return Round(
        measured["rate"],
        sum(used_s) / count * PER_MESSAGES,
        tuple(each / (seconds * share) for each in used_s),
        measured["client_cpu_s"] / seconds,
    )


def _used_s(process_id: int) -> float:
    times = psutil.Process(process_id).cpu_times()
    return times.user + times.system


def table(rows: Sequence[Row]) -> Table:
    shown = Table(title="One queue, brokers with the same share of a core each")
    for heading in ("stores", "messages", "brokers"):
        shown.add_column(heading)
    for heading in ("messages a second", "to one broker", "wanted", "CPU s per 100,000", "used"):
        shown.add_column(heading, justify="right")
    for row in rows:
        wanted = WANTED.get(row.brokers)
        shown.add_row(
            *(row.kind, row.shape, str(row.brokers), f"{row.rate:,.0f}", f"{row.ratio:.2f}"),
            *("" if wanted is None else f"{wanted:.1f}", f"{row.cpu_s:.2f}", f"{row.used:.0%}"),
        )
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--share", type=float, default=None, help="of a core, for each broker")
    parser.add_argument(
        "--same-clients", action="store_true", help="the same number of clients for any number of brokers"
    )
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--count", type=int, default=None, help="messages for each broker")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.rounds = options.rounds or (ROUNDS_QUICK if options.quick else ROUNDS)
    options.count = options.count or (COUNT_QUICK if options.quick else COUNT)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    reason = why_not()
    if reason:
        console.print(f"SKIPPED: several brokers, because {reason}")
        return 0
    rows: list[Row] = []
    crossing: dict[str, float] = {}
    try:
        load.build()
        with busy_cores():
            for kind in options.kinds:
                rows += measure(kind, options, console.print)
            if "postgresql" in options.kinds:
                crossing = measure_crossing(options.rounds)
    except BrokerFailed as failure:
        console.print(f"SKIPPED: {failure}")
    console.print(table(rows))
    for what, cpu_s in crossing.items():
        console.print(f"{what}: CPU {cpu_s:.2f} s per 100,000")
    if not options.quick:
        shares = {kind: options.share or SHARES[kind] for kind in options.kinds}
        found = {
            "shares": shares,
            "same_clients": options.same_clients,
            "rows": [_as_json(row) for row in rows],
            "crossing": crossing,
        }
        options.results.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _as_json(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in Row.__dataclass_fields__}


if __name__ == "__main__":
    sys.exit(main())
