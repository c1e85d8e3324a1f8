"""Connections, stores and policies: what an operator does."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from bendybus.errors import BrokerError


def test_a_connection_is_seen_with_its_links_and_closed(portal, visit):
    with portal.client() as client:
        receiver = client.receiver("orders")
        receiver.check()
        page = visit("connections")
        row = page.locator("tbody tr", has_text="orders")
        expect(row).to_contain_text("receives")
        expect(row).to_contain_text("RootManageSharedAccessKey")
        row.get_by_role("button", name="Close").click()
        page.get_by_role("alertdialog").get_by_role("button", name="Close").click()
        expect(row).to_have_count(0)
        with pytest.raises(BrokerError):
            receiver.receive(1, timeout_s=3)
    expect(page.locator(".empty")).to_contain_text("Nobody is connected")


def test_a_store_is_made_to_fail_and_heals(portal, visit):
    page = visit("stores")
    row = page.locator("tr", has_text="store-1")
    expect(row).to_contain_text("Available")
    row.get_by_role("button", name="Fail").click()
    expect(row.get_by_role("button", name="Heal")).to_be_visible()
    portal.send("orders", 40)
    expect(row).to_contain_text("Away", timeout=30_000)
    row.get_by_role("button", name="Heal").click()
    expect(row).to_contain_text("Available", timeout=30_000)
    portal.server.take_fresh_log()


def test_a_store_is_attached_another_drained_with_progress_and_retired(portal, visit):
    portal.send("orders", 4000, body=b"x" * 1000)
    page = visit("stores")
    page.get_by_role("button", name="Attach a store").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("URL").fill("sqlite:////etc/not-allowed.db")
    dialog.get_by_role("button", name="Attach").click()
    expect(dialog.locator(".banner.bad")).to_contain_text("--allow-store")
    dialog.get_by_label("URL").fill(f"sqlite:///{portal.more_stores}/extra.db")
    dialog.get_by_label("Name").fill("extra")
    dialog.get_by_role("button", name="Attach").click()
    extra, drained = page.locator("tr", has_text="extra"), page.locator("tr", has_text="store-1")
    expect(extra).to_contain_text("Available")
    expect(extra.locator("td").nth(4)).to_have_text("0")
    drained.get_by_role("button", name="Drain").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Drain").click()
    expect(drained).to_contain_text("Draining")
    expect(drained.get_by_role("img").first).to_have_attribute(
        "aria-label", re.compile(r"[1-9]\d* of \d+ partitions moved"), timeout=60_000
    )
    drained.get_by_role("button", name="Retire").click(timeout=60_000)
    page.get_by_role("alertdialog").get_by_role("button", name="Retire").click()
    expect(drained).to_have_count(0)
    expect(extra.locator("td").nth(4)).not_to_have_text("0")
    extra.get_by_role("link", name="extra").click()
    expect(page.locator("tr", has_text="orders").locator(".badge").first).to_be_visible()
    page.goto(portal.url + "entity?path=orders")
    expect(page.locator(".stat", has_text="Active")).to_contain_text("4,000")
    expect(page.locator(".partition", has_text="extra").first).to_be_visible()


def test_an_entity_has_policies_of_its_own(portal, visit):
    page = visit("policies?path=orders", permissions=["clipboard-read", "clipboard-write"])
    expect(page.locator(".empty")).to_contain_text("No policies")
    page.get_by_role("button", name="Create a policy").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("Name").fill("reader")
    dialog.get_by_role("button", name="Create").click()
    page.locator("tr", has_text="reader").get_by_role("button", name="Copy connection string").click()
    expect(page.locator(".toast")).to_contain_text("on your clipboard")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.endswith(";EntityPath=orders")
    page.click("text=Sign out")
    page.fill("#secret", copied)
    page.click("button[type=submit]")
    expect(page.locator("h1")).to_have_text("orders")
    expect(page.locator(".tabs")).not_to_contain_text("Settings")


def copied_string(page, row) -> str:
    page.evaluate("navigator.clipboard.writeText('')")
    row.get_by_role("button", name="Copy connection string").click()
    while not (copied := page.evaluate("navigator.clipboard.readText()")):
        page.wait_for_timeout(50)
    return copied


def test_a_policy_is_created_its_key_replaced_and_its_connection_string_copied(portal, visit):
    page = visit("policies", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Create a policy").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("Name").fill("reader")
    dialog.get_by_role("button", name="Create").click()
    row = page.locator("tr", has_text="reader")
    expect(row).to_contain_text("Listen")
    copied = copied_string(page, row)
    assert "SharedAccessKeyName=reader;SharedAccessKey=" in copied
    key = copied.split("SharedAccessKey=")[1].split(";")[0]
    assert key not in page.content()
    row.get_by_role("button", name="New key").click()
    page.locator(".dialog:visible").get_by_role("button", name="Make a new key").click()
    expect(page.locator(".toast", has_text="new primary key")).to_be_visible()
    before = copied_string(page, row)
    assert before != copied
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    page.locator(".undo").get_by_role("button", name="Undo").click()
    assert copied_string(page, row) == before
