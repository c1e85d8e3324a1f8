"""A server with several brokers: one portal behind one port shows what all of them have."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import BrokerError
from bendybus.management.json_api import ask_json
from browser.conftest import QUEUES, SHOTS, TOPICS, Portal
from browser.test_pages import serious_faults
from fix_server import ServerProcess, namespace
from interop.test_brokers import broker_processes


@pytest.fixture
def portal(tmp_path: Path) -> Iterator[Portal]:
    config: Any = namespace(QUEUES, topics=TOPICS)
    config["UserConfig"]["Namespaces"][0]["Name"] = "shop"
    server = ServerProcess(tmp_path, config, ["--brokers", "2"])
    server.start()
    yield Portal(server)
    assert server.stop() == 0


def test_pages_show_the_partitions_connections_and_stores_of_all_brokers(portal, visit):
    portal.send("orders", 64, partition_key=lambda number: f"key-{number}")
    page = visit("entity?path=orders")
    expect(page.locator(".partition")).to_have_count(16)
    for broker in ("0", "1"):
        of_broker = page.locator(".partition", has_text=re.compile(rf"Broker{broker}(?!\d)"))
        expect(of_broker).to_have_count(8)
        expect(of_broker.get_by_text("Available", exact=True)).to_have_count(8)
    expect(page.locator(".stat", has_text="Active")).to_contain_text("64")

    namespace = ConnectionString.parse(portal.server.connection_string)
    with ExitStack() as exits:
        brokers: set[str] = set()
        while brokers != {"0", "1"}:
            exits.enter_context(portal.client()).sender("invoices").check()
            brokers = {each["broker"] for each in ask_json(namespace, "GET", "/$connections")["connections"]}
        page.goto(portal.url + "connections")
        rows = page.locator("tbody tr", has_text="invoices")
        expect(rows.first).to_be_visible()
        assert {row.locator("td").nth(1).inner_text() for row in rows.all()} == {"0", "1"}
        other = rows.filter(has=page.get_by_role("cell", name="1", exact=True)).first
        before = rows.count()
        other.get_by_role("button", name="Close").click()
        page.get_by_role("alertdialog").get_by_role("button", name="Close").click()
        expect(page.locator(".toast")).to_contain_text("The connection is closed.")
        assert before >= 2

    page.get_by_role("link", name="Stores and brokers").click()
    expect(page.locator("h1")).to_have_text("Stores and brokers")
    brokers_table = page.get_by_role("region", name="Brokers", exact=True)
    expect(brokers_table.locator("tbody tr")).to_have_count(2)
    first, second = brokers_table.locator("tbody tr").all()
    expect(first).to_contain_text("Leads")
    expect(first).to_contain_text("store-0")
    expect(second).to_contain_text("Serving")
    expect(second).not_to_contain_text("Leads")
    stores = page.get_by_role("region", name="Messaging stores", exact=True)
    expect(stores.locator("tbody tr")).to_have_count(2)
    expect(page.get_by_role("button", name="Attach a store")).to_have_count(0)
    expect(page.get_by_role("button", name="Drain")).to_have_count(0)
    stores.get_by_role("link", name="store-1").click()
    expect(page.locator(".stat", has_text="Broker")).to_contain_text("1")
    expect(page.locator("tr", has_text="orders")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_several_brokers_have_no_serious_fault(portal, visit, scheme):
    portal.send("orders", 64, partition_key=lambda number: f"key-{number}")
    page = visit("stores", color_scheme=scheme)
    expect(page.locator("tbody tr")).to_have_count(4)
    faults = serious_faults(page)
    if scheme == "light":
        page.screenshot(path=SHOTS / "brokers.png")
    with portal.client() as client:
        client.receiver("orders").check()
        page.goto(portal.url + "connections")
        expect(page.locator("tbody tr")).to_have_count(1)
        faults += serious_faults(page)
    assert faults == []


def kill_again_and_again(portal: Portal, page: Page, seen: str) -> None:
    """Kill the second broker, and each one that replaces it, until the page has shown it."""
    first = min(broker_processes(portal.server))
    while not page.locator(seen).count():
        for pid in broker_processes(portal.server):
            if pid != first:
                os.kill(pid, signal.SIGKILL)
        page.wait_for_timeout(100)


def test_a_broker_that_is_killed_is_shown_as_away_and_comes_back(portal, visit):
    entity, brokers = visit("entity?path=orders"), visit("stores")
    second = brokers.get_by_role("region", name="Brokers", exact=True).locator("tbody tr").nth(1)
    expect(second).to_contain_text("Serving")
    expect(entity.locator(".partition.away")).to_have_count(0)

    # It is started again after a longer and longer time.
    kill_again_and_again(portal, brokers, "td .badge.bad >> text=Away")
    kill_again_and_again(portal, entity, "#outage >> text=Broker 1 is away")

    expect(second).to_contain_text("Serving", timeout=60_000)
    expect(entity.locator("#outage")).to_have_count(0, timeout=60_000)
    expect(entity.locator(".partition.away")).to_have_count(0)
    portal.server.take_fresh_log()


def test_a_page_comes_back_when_the_broker_that_has_the_portal_is_killed(portal, visit):
    portal.send("orders", 5)
    page = visit("entity?path=orders")
    expect(page.locator(".stat", has_text="Active")).to_contain_text("5")
    os.kill(min(broker_processes(portal.server)), signal.SIGKILL)
    # Its process is gone, and with it the page's connection: the browser loads the page from the next one.
    while True:
        try:
            portal.send("orders", 5)
            break
        except BrokerError:
            page.wait_for_timeout(200)
    expect(page.locator(".stat", has_text="Active")).to_contain_text("10", timeout=120_000)
    portal.server.take_fresh_log()
