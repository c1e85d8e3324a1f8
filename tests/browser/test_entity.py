"""An entity: counts, charts, the partition panel and an outage seen live; settings, edit and delete."""

from __future__ import annotations

from playwright.sync_api import expect

from bendybus.auth.connection_strings import ConnectionString
from bendybus.management.json_api import ask_json

# As a browser tells a page that its tab is hidden, or shown again.
SHOWN = """(state) => {
  Object.defineProperty(document, 'visibilityState', {value: state, configurable: true});
  document.dispatchEvent(new Event('visibilitychange'));
}"""


def fault(portal, method: str, store: str, body: object = None) -> None:
    namespace = ConnectionString.parse(portal.server.connection_string)
    ask_json(namespace, method, f"/$faults/stores/{store}", body)


def test_each_partition_shows_its_store_broker_health_depth_and_oldest_message(portal, visit):
    portal.send("orders", 64)
    page = visit("entity?path=orders")
    expect(page.locator(".partition")).to_have_count(16)
    first = page.locator("[data-partition='0']")
    expect(first).to_contain_text("Available")
    for name in ("Store", "Broker", "Active", "Oldest", "Size"):
        expect(first.locator("dt", has_text=name)).to_have_count(1)
    expect(page.locator(".stat", has_text="Active")).to_contain_text("64")
    expect(page.locator(".stat", has_text="Size")).to_contain_text("16.0 GB")
    expect(page.locator("figure")).to_have_count(3)
    portal.send("orders", 40)
    expect(page.locator("figure").first).not_to_contain_text("Arriving –")
    expect(page.locator(".stat", has_text="Active")).to_contain_text("104")


def test_messages_that_share_a_key_show_as_skew(portal, visit):
    portal.send("orders", 50, partition_key="the same")
    page = visit("entity?path=orders")
    expect(page.locator("#skew")).to_contain_text("16.0 times its share")


def test_a_store_outage_is_seen_live_and_so_is_its_end(portal, visit):
    portal.send("orders", 64)
    page = visit("entity?path=orders")
    expect(page.locator(".stat", has_text="Availability")).to_contain_text("16 partitions")
    fault(portal, "PUT", "store-0", {"fault": "fail", "reason": "the disk is gone"})
    portal.send("orders", 1)
    expect(page.locator("#outage")).to_contain_text("store-0")
    expect(page.locator(".partition.away")).to_have_count(8)
    expect(page.locator(".stat", has_text="Availability")).to_contain_text("8 of 16 partitions away")
    fault(portal, "DELETE", "store-0")
    expect(page.locator("#outage")).to_have_count(0, timeout=30_000)
    expect(page.locator(".partition.away")).to_have_count(0)
    portal.server.take_fresh_log()


def test_settings_are_shown_edited_and_the_entity_is_deleted(portal, visit):
    page = visit("settings?path=orders")
    expect(page.locator("dl")).to_contain_text("Lock duration")
    page.click("text=Edit")
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("Lock duration").fill("45s")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator("dl")).to_contain_text("45s")
    page.get_by_role("button", name="Delete").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog.locator(".banner.bad")).to_contain_text("Type orders")
    dialog.get_by_label("Name").fill("orders")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator("h1")).to_have_text("shop")
    expect(page.locator("tbody")).not_to_contain_text("orders")


def test_a_change_of_settings_can_be_undone(portal, visit):
    page = visit("settings?path=orders")
    before = page.locator("dl").inner_text()
    page.get_by_role("button", name="Edit").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("Lock duration").fill("45s")
    dialog.get_by_label("Forward to", exact=True).fill("payments")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator("dl")).to_contain_text("45s")
    # The offer goes with the person.
    page.goto(portal.url + "connections")
    undo = page.locator(".undo")
    expect(undo).to_contain_text("The settings of orders are saved.")
    page.goto(portal.url + "settings?path=orders")
    undo.get_by_role("button", name="Undo").click()
    expect(page.locator("dl")).not_to_contain_text("45s")
    expect(undo).to_have_count(0)
    after = page.locator("dl").inner_text()
    # When it was changed is another matter.
    assert [line for line in after.splitlines() if ":" not in line] == [
        line for line in before.splitlines() if ":" not in line
    ]


def test_a_page_that_nobody_sees_asks_for_nothing(portal, visit):
    page = visit("entity?path=orders")
    active = page.locator(".stat", has_text="Active")
    expect(active).to_contain_text("0")
    page.evaluate(SHOWN, "hidden")
    page.wait_for_timeout(2500)  # a refresh that was under way
    portal.send("orders", 7)
    page.wait_for_timeout(4500)
    expect(active).to_contain_text("0 locked")
    assert active.locator(".stat-value").inner_text() == "0"
    page.evaluate(SHOWN, "visible")
    expect(active.locator(".stat-value")).to_have_text("7")


def test_the_focus_stays_where_it_is_when_a_page_is_refreshed(portal, visit):
    page = visit("entity?path=events")
    page.get_by_role("link", name="audit").focus()
    portal.send("events", 5)
    expect(page.locator("tr", has_text="audit").locator("td").nth(1)).to_have_text("5")
    expect(page.get_by_role("link", name="audit")).to_be_focused()


def test_an_entity_that_is_not_there_is_an_error_with_a_way_back(visit):
    page = visit("entity?path=nothing")
    expect(page.get_by_role("alert")).to_contain_text("nothing")
    page.click("text=Back to the namespace")
    expect(page.locator("h1")).to_have_text("shop")
