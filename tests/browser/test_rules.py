"""Topics: subscriptions, and rules whose SQL is checked as it is typed."""

from __future__ import annotations

from playwright.sync_api import expect


def test_a_topic_shows_its_subscriptions_and_gets_another(portal, visit):
    portal.send("events", 5)
    page = visit("entity?path=events")
    row = page.locator("tr", has_text="audit")
    expect(row.locator("td").nth(1)).to_have_text("5")
    page.get_by_role("button", name="Create a subscription").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("Name").fill("shipping")
    dialog.get_by_role("button", name="Create").click()
    page.get_by_role("link", name="shipping").click()
    expect(page.locator("h1")).to_have_text("shipping")
    expect(page.locator(".crumbs")).to_contain_text("events")


def test_sql_is_checked_as_it_is_typed_and_tells_which_recent_messages_match(portal, visit):
    portal.send("events", 10, application_properties=lambda number: {"amount": number * 10})
    page = visit("rules?path=events/Subscriptions/audit")
    expect(page.locator("tbody")).to_contain_text("$Default")
    page.get_by_role("button", name="Add a rule").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("Name").fill("large")
    sql = dialog.get_by_label("SQL expression")
    sql.fill("amount >")
    expect(dialog.locator(".checked .banner.bad")).to_be_visible()
    sql.fill("amount >= 80")
    expect(dialog.locator(".checked")).to_contain_text("Matches 2 of 10 recent messages")
    expect(dialog.locator(".checked")).to_contain_text("events-9")
    dialog.get_by_label("Action").fill("SET x =")
    expect(dialog.locator(".checked .banner.bad")).to_be_visible()
    dialog.get_by_label("Action").fill("SET checked = 1")
    expect(dialog.locator(".checked .banner.bad")).to_have_count(0)
    dialog.get_by_role("button", name="Add").click()
    row = page.locator("tr", has_text="large")
    expect(row).to_contain_text("amount >= 80")
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    page.locator(".undo").get_by_role("button", name="Undo").click()
    expect(row).to_contain_text("amount >= 80")
    expect(row).to_contain_text("SET checked = 1")
