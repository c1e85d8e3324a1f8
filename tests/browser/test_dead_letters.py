"""Dead letters: by reason, edited, resubmitted one by one and all at once, with progress."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect


def dead_letter(portal, entity: str, count: int, reason: str) -> None:
    with portal.client() as client:
        receiver = client.receiver(entity)
        left = count
        while left:
            messages = receiver.receive(min(left, 500), timeout_s=10)
            assert messages
            receiver.dead_letter(messages, reason, "for a test")
            left -= len(messages)


def test_dead_letters_are_grouped_by_reason_and_resubmitted_by_reason(portal, visit):
    portal.send("orders", 12)
    dead_letter(portal, "orders", 7, "Card declined")
    dead_letter(portal, "orders", 5, "It's gone")
    page = visit("dead-letters?path=orders")
    reasons = page.locator(".reason-list")
    expect(reasons).to_contain_text("Card declined7")
    reasons.get_by_text("It's gone").click()
    expect(page.locator("tbody tr")).to_have_count(5)
    page.get_by_role("button", name="Resubmit these").click()
    page.locator(".dialog:visible").get_by_role("button", name="Resubmit").click()
    expect(page.locator(".job")).to_have_attribute("data-state", "done")
    page.goto(portal.url + "entity?path=orders")
    expect(page.locator(".stat", has_text="Active")).to_contain_text("5")
    expect(page.locator(".stat", has_text="Dead letters")).to_contain_text("7")


def test_one_dead_letter_is_edited_and_resubmitted(portal, visit):
    portal.send("orders", 2, application_properties={"amount": 3})
    dead_letter(portal, "orders", 2, "Card declined")
    page = visit("dead-letters?path=orders")
    page.locator("tr", has_text="orders-0").get_by_role("button", name="Edit").click()
    dialog = page.locator(".dialog:visible")
    expect(dialog.get_by_label("Application properties")).to_have_value("amount:=3")
    dialog.get_by_label("Body").fill("mended")
    dialog.get_by_role("button", name="Send").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tr", has_text="orders-1").get_by_role("button", name="Resubmit").click()
    expect(page.locator(".empty")).to_contain_text("No dead letters")
    with portal.client() as client:
        messages = client.receiver("orders").receive(2, timeout_s=5)
    bodies = {str(message.message_id): message.body for message in messages}
    assert bodies["orders-0"] == b"mended"
    assert all("DeadLetterReason" not in message.application_properties for message in messages)


def test_some_dead_letters_are_chosen_and_resubmitted(portal, visit):
    portal.send("invoices", 5)
    dead_letter(portal, "invoices", 5, "Card declined")
    page = visit("dead-letters?path=invoices")
    for number in (1, 3):
        page.locator("tr", has_text=f"invoices-{number}").get_by_role("checkbox").check()
    page.get_by_role("button", name="Resubmit 2 chosen").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    with portal.client() as client:
        messages = client.receiver("invoices").receive(5, timeout_s=5)
    assert {str(message.message_id) for message in messages} == {"invoices-1", "invoices-3"}


@pytest.mark.timeout(600)
def test_a_hundred_thousand_dead_letters_are_resubmitted_with_progress(portal, visit):
    count = 100_000
    portal.send("orders", count, body=b"x")
    dead_letter(portal, "orders", count, "Card declined")
    page = visit("dead-letters?path=orders")
    page.get_by_role("button", name="Resubmit all").click()
    page.locator(".dialog:visible").get_by_role("button", name="Resubmit").click()
    job = page.locator(".job")
    expect(job).to_contain_text(re.compile(r"[1-9][\d,]* of 100,000"))
    expect(job).to_have_attribute("data-state", "running")
    # It goes on when the page is left, and can be stopped and begun again.
    page.goto(portal.url + "connections")
    page.locator(".job").get_by_role("button", name="Stop").click()
    expect(page.locator(".job")).to_have_attribute("data-state", "stopped")
    page.goto(portal.url + "dead-letters?path=orders")
    page.get_by_role("button", name="Resubmit all").click()
    page.locator(".dialog:visible").get_by_role("button", name="Resubmit").click()
    expect(page.locator(".job").first).to_have_attribute("data-state", "done", timeout=400_000)
    page.goto(portal.url + "entity?path=orders")
    expect(page.locator(".stat", has_text="Active")).to_contain_text("100,000")
    expect(page.locator(".stat", has_text="Dead letters")).to_contain_text("0")
