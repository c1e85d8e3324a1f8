"""Entities as the emulator's Config.json."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import expect


def test_entities_are_exported_changed_and_imported(portal, visit):
    page = visit()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    config = json.loads(Path(download.value.path()).read_text())
    (namespace,) = config["UserConfig"]["Namespaces"]
    assert {queue["Name"] for queue in namespace["Queues"]} >= {"orders", "emails/outgoing"}
    orders = next(queue for queue in namespace["Queues"] if queue["Name"] == "orders")
    assert orders["Properties"]["EnablePartitioning"] is True
    (topic,) = namespace["Topics"]
    billing = next(each for each in topic["Subscriptions"] if each["Name"] == "billing")
    assert billing["Rules"][0]["Properties"]["SqlFilter"] == {"SqlExpression": "amount > 100"}
    orders["Name"] = "more-orders"
    topic["Name"] = "more-events"
    page.get_by_role("button", name="Import").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("or paste it here").fill("{}")
    dialog.get_by_role("button", name="Import").click()
    expect(dialog.locator(".banner.bad")).to_contain_text("not a Config.json")
    dialog.get_by_label("or paste it here").fill(json.dumps(config))
    dialog.get_by_role("button", name="Import").click()
    expect(page.locator(".job")).to_have_attribute("data-state", "done")
    expect(page.locator("tbody")).to_contain_text("more-orders")
    page.goto(portal.url + "rules?path=more-events/Subscriptions/billing")
    expect(page.locator("tbody")).to_contain_text("amount > 100")
