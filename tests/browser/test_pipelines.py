"""Pipelines: runs as they report themselves, and the plots of a report."""

from __future__ import annotations

from playwright.sync_api import expect

from bendybus.auth.connection_strings import ConnectionString
from bendybus.management.run_reports import RunReporter
from browser.test_pages import report_runs


def test_a_run_is_seen_while_it_goes_on_and_when_it_has_ended(portal, visit):
    page = visit("pipelines")
    expect(page.locator(".empty")).to_contain_text("No runs yet")
    reporter = RunReporter(ConnectionString.parse(portal.server.connection_string), "capture", "orders")
    reporter.tell("Capturing", 30, 120)
    row = page.locator("tbody tr")
    expect(row).to_contain_text("running")
    expect(row.get_by_role("img")).to_have_attribute("aria-label", "25 %")
    reporter.end("finished", 120, {"seconds": 3})
    expect(row).to_contain_text("finished")
    row.get_by_role("link").click()
    expect(page.locator("dl")).to_contain_text("Seconds3")


def test_runs_outlive_the_server(portal, visit):
    report_runs(portal)
    portal.server.stop()
    portal.server.start()
    page = visit("pipelines")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("link", name="Report").click()
    expect(page.locator("figure")).to_have_count(3)


def test_a_report_has_its_plots(portal, visit):
    report_runs(portal)
    page = visit("pipelines?run=2")
    expect(page.locator("figure")).to_have_count(3)
    expect(page.locator("rect.column").first).to_be_visible()
    told = page.get_by_role("img").first.get_attribute("aria-label")
    assert told is not None and told.startswith("Messages by partition: 0 5.0, 1 12, 2 19")
