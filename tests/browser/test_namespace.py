"""The namespace: every entity at a glance, search, sort and create."""

from __future__ import annotations

from playwright.sync_api import expect

from browser.conftest import QUEUES


def test_all_entities_are_listed_with_their_counts(portal, visit):
    portal.send("orders", 12)
    page = visit()
    row = page.locator("tr", has_text="orders")
    expect(row.locator("td").nth(1)).to_have_text("12")
    expect(row).to_contain_text("16")
    expect(page.locator(".stat", has_text="Queues")).to_contain_text(str(len(QUEUES)))
    portal.send("orders", 3)
    expect(row.locator("td").nth(1)).to_have_text("15")


def test_entities_are_searched_and_sorted_and_the_view_has_an_address(portal, visit):
    portal.send("payments", 5)
    page = visit()
    page.fill(".search input", "OUT")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(portal.url + "?search=OUT")
    page.goto(portal.url)
    page.click("th >> text=Active")
    expect(page.locator("tbody tr").first).to_contain_text("payments")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Activearrow_downward")
    page.goto(portal.url + "?search=nothing-like-this")
    expect(page.locator(".empty")).to_contain_text("Nothing found")


def test_a_new_queue_is_partitioned_unless_one_says_otherwise(portal, visit):
    page = visit()
    page.click("text=Create")
    dialog = page.locator(".dialog")
    expect(dialog.get_by_role("checkbox", name="Enable partitioning")).to_be_checked()
    expect(dialog).to_contain_text("the entity holds up to 16 GB")
    dialog.get_by_label("Name").fill("parcels")
    dialog.get_by_role("checkbox", name="Enable partitioning").click()
    expect(dialog).to_contain_text("One partition: the entity holds up to 1 GB")
    dialog.get_by_role("checkbox", name="Enable partitioning").click()
    dialog.get_by_role("button", name="Create").click()
    expect(page.locator("h1")).to_have_text("parcels")
    expect(page.locator(".partition")).to_have_count(16)


def test_what_cannot_be_is_refused_with_the_reason(portal, visit):
    page = visit()
    page.click("text=Create")
    dialog = page.locator(".dialog")
    dialog.get_by_label("Name").fill("parcels")
    dialog.get_by_label("Lock duration").fill("10m")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.locator(".banner.bad")).to_contain_text("LockDuration")
    dialog.get_by_label("Lock duration").fill("a while")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.locator(".banner.bad")).to_contain_text("a while")


def test_a_name_that_is_taken_is_refused_in_the_dialog(portal, visit):
    page = visit()
    page.click("text=Create")
    dialog = page.locator(".dialog")
    dialog.get_by_label("Name").fill("orders")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.locator(".banner.bad")).to_contain_text("already exists")
