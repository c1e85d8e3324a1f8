"""The portal alone, beside a server: when the server is lost, the page says so and comes back by itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from fix_processes import BENDYBUS


@pytest.fixture
def link(portal) -> Iterator[str]:
    command = [BENDYBUS, "portal", "--port", "0", "--connection-string", portal.server.connection_string]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as alone:
        assert alone.stdout is not None
        yield alone.stdout.readline().split()[1]
        alone.terminate()


def test_a_lost_server_shows_as_lost_and_comes_back_by_itself(portal, link, chromium):
    portal.send("orders", 3)
    page = chromium.new_context().new_page()
    page.goto(link)
    page.get_by_role("link", name="orders").click()
    expect(page.locator(".stat", has_text="Active")).to_contain_text("3")
    portal.server.kill()
    expect(page.locator("#lost")).to_contain_text("does not answer", timeout=20_000)
    # What was known is still shown.
    expect(page.locator(".stat", has_text="Active")).to_contain_text("3")
    portal.server.start()
    portal.send("orders", 2)
    expect(page.locator("#lost")).to_have_count(0, timeout=20_000)
    expect(page.locator(".stat", has_text="Active")).to_contain_text("5")
    page.context.close()
