"""Sessions: listed, looked into, their state edited, dead-lettered as a whole."""

from __future__ import annotations

from playwright.sync_api import expect


def test_a_session_is_looked_into_and_its_state_is_kept(portal, visit):
    portal.send("workflows", 12, session_id=lambda number: f"customer-{number % 3}")
    page = visit("sessions?path=workflows")
    expect(page.locator("tbody tr")).to_have_count(3)
    row = page.locator("tr", has_text="customer-1")
    row.get_by_role("button", name="State").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("State").fill('{"step": 2}')
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    row.get_by_role("button", name="State").click()
    expect(page.locator(".dialog:visible").get_by_label("State")).to_have_value('{\n  "step": 2\n}')
    page.locator(".dialog:visible").get_by_role("button", name="Cancel").click()
    page.locator(".undo").get_by_role("button", name="Undo").click()
    expect(page.locator(".undo")).to_have_count(0)
    row.get_by_role("button", name="State").click()
    expect(page.locator(".dialog:visible").get_by_label("State")).to_have_value("")
    page.locator(".dialog:visible").get_by_role("button", name="Cancel").click()
    row.get_by_role("link", name="customer-1").click()
    expect(page.locator("tbody tr")).to_have_count(4)


def test_a_whole_session_is_dead_lettered(portal, visit):
    portal.send("workflows", 12, session_id=lambda number: f"customer-{number % 3}")
    page = visit("sessions?path=workflows")
    page.locator("tr", has_text="customer-2").get_by_role("button", name="Dead-letter").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Dead-letter").click()
    expect(page.locator(".job")).to_have_attribute("data-state", "done")
    page.goto(portal.url + "entity?path=workflows")
    expect(page.locator(".stat", has_text="Dead letters")).to_contain_text("4")


def test_the_messages_of_all_sessions_are_moved(portal, visit):
    portal.send("workflows", 12, session_id=lambda number: f"customer-{number % 3}")
    page = visit("messages?path=workflows")
    page.get_by_role("button", name="Move").click()
    dialog = page.locator(".dialog:visible")
    dialog.get_by_label("To the queue or topic").fill("payments")
    dialog.get_by_role("button", name="Move").click()
    expect(page.locator(".job")).to_contain_text("12 of 12")
    expect(page.locator(".job")).to_have_attribute("data-state", "done", timeout=30_000)
    page.goto(portal.url + "messages?path=payments")
    expect(page.locator("tbody tr")).to_have_count(12)
    expect(page.locator("tbody tr", has_text="customer-2")).to_have_count(4)
