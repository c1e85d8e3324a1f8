"""`bendybus top` against a real server, and what it makes of two pages of metrics."""

from __future__ import annotations

import json
from pathlib import Path

from bendybus.cli.top import Reading
from cli.conftest import Bendybus
from fix_processes import run_bendybus
from fix_server import StartServer


def page(entity: str, incoming: int, partition: str = "") -> str:
    extra = f',partition="{partition}"' if partition else ""
    where = f'entity="{entity}",namespace="n"{extra}'
    return (
        f"bendybus_incoming_messages_total{{{where}}} {incoming}\n"
        f'bendybus_messages{{{where},state="active",subqueue="main"}} 7\n'
        f'bendybus_messages{{{where},state="active",subqueue="dead_letter"}} 2\n'
    )


def test_a_rate_is_the_difference_of_two_readings() -> None:
    before, now = Reading.of(page("orders", 10), 100.0), Reading.of(page("orders", 30), 102.0)
    assert list(now.rates_since(before)) == [
        {"entity": "orders", "incoming": 10.0, "active": 7, "deadLetters": 2}
    ]


def test_an_entity_that_is_new_or_counts_from_zero_again_has_no_rate() -> None:
    new = Reading.of(page("orders", 30, "3"), 2.0)
    for before in (Reading(0.0), Reading.of(page("orders", 99, "3"), 0.0)):
        (row,) = new.rates_since(before)
        assert (row["incoming"], row["partition"]) == (0.0, 3)


def test_names_are_read_as_they_were_before_they_were_escaped() -> None:
    reading = Reading.of(page('a\\"b\\\\c\\nd', 1), 0.0)
    assert list(reading.counters) == [('a"b\\c\nd', "")]


def test_entities_and_partitions_are_shown(bendybus: Bendybus, partitioned: str) -> None:
    bendybus("send", partitioned, "--body", "x", "--count", "3")
    once = ("top", "--once", "--every", "0.1", "--entity", partitioned)
    (row,) = json.loads(bendybus(*once, "-o", "json").stdout)["rates"]
    assert (row["entity"], row["active"], row["incoming"]) == (partitioned, 3, 0.0)
    assert partitioned in bendybus(*once).stdout
    rows = json.loads(bendybus(*once, "--partitions", "-o", "json").stdout)["rates"]
    assert sorted(row["partition"] for row in rows) == list(range(16))


def test_several_brokers_are_watched(start_server: StartServer, tmp_path: Path) -> None:
    spread = start_server({"q": {"EnablePartitioning": True}}, None, "--brokers", "2")
    environment = {"BENDYBUS_CONNECTION_STRING": spread.connection_string}
    for key in range(20):
        run_bendybus(
            "send", "q", "--body", "x", "--partition-key", str(key), environment=environment, folder=tmp_path
        )

    def rates(*arguments: str) -> list[dict[str, object]]:
        once = ("top", "--once", "--every", "0.1", *arguments, "-o", "json")
        done = run_bendybus(*once, environment=environment, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["rates"]

    (row,) = rates()
    assert (row["entity"], row["active"]) == ("q", 20)
    assert sorted(row["partition"] for row in rates("--partitions")) == list(range(16))
