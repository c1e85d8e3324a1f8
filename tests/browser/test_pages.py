"""Every page, light and dark, on a laptop and on a phone: axe-core finds no serious fault.

The screenshots are made here: in .cache/portal, or in docs/guides/portal (`make browser SHOTS=1`).
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from bendybus.auth.connection_strings import ConnectionString
from bendybus.management.json_api import ask_json
from browser.conftest import SHOTS

AXE = Path(__file__).parents[2] / ".cache" / "axe-core" / "node_modules" / "axe-core" / "axe.min.js"

# Name of the screenshot -> the page, and what shows that it is complete.
PAGES = {
    "namespace": ("", "tbody tr"),
    "entity": ("entity?path=orders", ".partition"),
    "topic": ("entity?path=events", "tbody tr"),
    "messages": ("messages?path=orders", "tbody tr"),
    "dead-letters": ("dead-letters?path=orders", ".reason-list a"),
    "sessions": ("sessions?path=workflows", "tbody tr"),
    "rules": ("rules?path=events/Subscriptions/billing", "tbody tr"),
    "settings": ("settings?path=orders", "dl"),
    "connections": ("connections", "tbody tr"),
    "stores": ("stores", "tbody tr"),
    "store": ("stores?store=store-0", "tbody tr"),
    "policies": ("policies", "tbody tr"),
    "pipelines": ("pipelines", "tbody tr"),
    "pipeline": ("pipelines?run=2", "figure"),
}
# A button that opens a dialog -> its page, and the screenshot.
DIALOGS = {
    "create": ("", "Create"),
    "send": ("messages?path=orders", "Send"),
    "rule": ("rules?path=events/Subscriptions/billing", "Add a rule"),
}


def fill(portal) -> None:
    """A namespace in which something happens."""
    names = ["Ada", "Grace", "Zoë", "Edsger", "Barbara", "李"]

    def body(number: int) -> bytes:
        return f'{{"order": {number}, "customer": "{names[number % 6]}", "total": {number * 7}}}'.encode()

    def own(number: int) -> dict[str, object]:
        return {"amount": number * 7, "region": ("eu", "us")[number % 2]}

    given = {"body": body, "subject": "order placed", "application_properties": own}
    portal.send("orders", 240, partition_key=lambda number: f"customer-{number % 40}", **given)
    portal.send("payments", 60, **given)
    portal.send("invoices", 25, **given)
    portal.send("workflows", 24, session_id=lambda number: f"customer-{number % 6}", **given)
    portal.send("events", 40, **given)
    with portal.client() as client:
        receiver = client.receiver("orders")
        for reason, count in (("Card declined", 11), ("Address unknown", 6), ("MaxDeliveryCountExceeded", 3)):
            messages = receiver.receive(count, timeout_s=5)
            receiver.dead_letter(messages, reason, "The payment service answered 402.")


def report_runs(portal) -> None:
    """As `bendybus pipeline` reports its runs."""
    namespace = ConnectionString.parse(portal.server.connection_string)
    capture = {"pipeline": "capture", "about": "orders", "state": "running", "phase": "Capturing orders"}
    ask_json(namespace, "PUT", "/$pipelines/1", {**capture, "messages": 140, "total": 240})
    section = {
        "title": "Waiting in orders",
        "messages": 240,
        "bodyBytes": 11_000,
        "partitions": [{"partition": n, "messages": 5 + n * 7 % 23, "bytes": 500} for n in range(16)],
        "topKeys": [{"key": f"customer-{n}", "messages": 40 - 5 * n, "partition": n} for n in range(6)],
        "rates": [{"from": f"10:{n:02}", "perSecond": 20 + n * 13 % 17} for n in range(30)],
    }
    report = {"pipeline": "report", "about": "orders", "state": "finished", "phase": "Reporting on orders"}
    summary = {"sections": [section], "seconds": 7.2, "outcome": "finished"}
    ask_json(namespace, "PUT", "/$pipelines/2", {**report, "messages": 240, "summary": summary})


def serious_faults(page: Page) -> list[str]:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: it needs npm")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{each['id']}: {each['help']} {[node['html'][:160] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


@pytest.fixture
def filled(portal):
    fill(portal)
    report_runs(portal)
    with portal.client() as client:
        client.receiver("orders").check()
        client.sender("payments").check()
        yield portal


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_fault(filled, visit, scheme):
    page = visit(color_scheme=scheme)
    faults: dict[str, list[str]] = {}
    for name, (path, complete) in PAGES.items():
        page.goto(filled.url + path)
        page.wait_for_selector(complete)
        if name == "entity":
            _traffic(filled, page)
        faults[name] = serious_faults(page)
        if scheme == "light" or name in ("namespace", "entity"):
            suffix = "" if scheme == "light" else "-dark"
            page.screenshot(path=SHOTS / f"{name}{suffix}.png")
    for name, (path, label) in DIALOGS.items():
        page.goto(filled.url + path)
        page.wait_for_selector("tbody tr")
        page.get_by_role("button", name=label, exact=True).click()
        expect(page.locator(".dialog:visible")).to_be_visible()
        page.wait_for_timeout(400)  # the dialog fades in, and colours are compared
        faults[name] = serious_faults(page)
        if scheme == "light":
            page.screenshot(path=SHOTS / f"{name}.png")
    page.goto(filled.url + "messages?path=orders")
    page.locator("tbody button").first.click()
    expect(page.locator("pre.body")).to_be_visible()
    page.wait_for_timeout(400)
    faults["message"] = serious_faults(page)
    if scheme == "light":
        page.screenshot(path=SHOTS / "message.png")
    page.locator(".dialog:visible").get_by_role("button", name="Close").click()
    page.click("text=Sign out")
    expect(page.locator("h1")).to_have_text("Sign in")
    faults["sign-in"] = serious_faults(page)
    page.screenshot(path=SHOTS / ("sign-in.png" if scheme == "light" else "sign-in-dark.png"))
    assert {name: found for name, found in faults.items() if found} == {}


def _traffic(portal, page: Page) -> None:
    """A few seconds of messages, for the charts."""
    with portal.client() as client:
        receiver = client.receiver("orders")
        for turn in range(8):
            portal.send("orders", 30 + 10 * (turn % 3))
            receiver.complete(receiver.receive(20 + 5 * (turn % 4), timeout_s=2))
            time.sleep(1)
    expect(page.locator("polyline").first).to_be_visible()


def test_every_page_fits_a_phone(filled, visit):
    page = visit(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    wide = []
    for name, (path, complete) in PAGES.items():
        page.goto(filled.url + path)
        page.wait_for_selector(complete)
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth + 1"):
            wide.append(name)
        if name in ("namespace", "entity"):
            page.screenshot(path=SHOTS / f"{name}-phone.png")
    assert wide == []


def test_the_portal_loads_nothing_from_other_servers(filled, visit):
    page = visit()
    elsewhere: list[str] = []
    page.on(
        "request", lambda request: elsewhere.append(request.url) if "127.0.0.1" not in request.url else None
    )
    for path, complete in PAGES.values():
        page.goto(filled.url + path)
        page.wait_for_selector(complete)
    assert [url for url in elsewhere if not url.startswith(("data:", "blob:"))] == []


def test_the_keyboard_is_enough(filled, visit):
    page = visit()
    page.wait_for_selector("tbody tr")
    page.keyboard.press("/")
    expect(page.locator(".search input")).to_be_focused()
    page.keyboard.type("invoi")
    expect(page.locator("tbody tr")).to_have_count(1)
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "invoices":
            break
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("invoices")
