"""The portal in a real browser: Debian's Chromium, headless, driven by Playwright. `make browser` runs these.

`make test` does not: it needs Python only. A test has a server with a namespace of its own, and a person at a
browser who is signed in. What the browser complains about on its console fails the test.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from bendybus.client import BusClient, ClientSettings, encode
from fix_server import BROKERS, ServerProcess, namespace

ASKED_FOR: Final = os.environ.get("BENDYBUS_BROWSER") == "1"
if not ASKED_FOR:
    collect_ignore_glob = ["test_*.py"]
else:
    from playwright.sync_api import Browser, Page, expect, sync_playwright

    from fix_jwt import ISSUER, Provider

    # What a page shows in the end is what counts. A machine that is busy needs longer than Playwright's 5 s.
    expect.set_options(timeout=30_000)

CHROMIUM: Final = "/usr/bin/chromium"
ROOT: Final = Path(__file__).parents[2]
# Pictures differ a little from run to run, so those of the guide are made anew only on request.
FOR_THE_GUIDE: Final = os.environ.get("BENDYBUS_SHOTS") == "1"
SHOTS: Final = ROOT / "docs" / "guides" / "portal" if FOR_THE_GUIDE else ROOT / ".cache" / "portal"

# As root in a container; and nothing of Chromium's own may look for other hosts.
ARGUMENTS: Final = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]

QUEUES: Final = {
    "orders": {"EnablePartitioning": True, "DeadLetteringOnMessageExpiration": True},
    "payments": {"EnablePartitioning": True},
    "invoices": {},
    "workflows": {"EnablePartitioning": True, "RequiresSession": True},
    "emails/outgoing": {"EnablePartitioning": True},
    "archive": {"EnablePartitioning": True, "KeepCompleted": "PT1H"},
}
TOPICS: Final = [
    {
        "Name": "events",
        "Properties": {"EnablePartitioning": True},
        "Subscriptions": [
            {"Name": "audit", "Properties": {}, "Rules": []},
            {
                "Name": "billing",
                "Properties": {},
                "Rules": [
                    {
                        "Name": "large",
                        "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "amount > 100"}},
                    }
                ],
            },
        ],
    }
]
RULES: Final = [
    {"Name": "Listens", "PrimaryKey": "key-of-those-who-listen", "Rights": ["Listen"]},
    {"Name": "Sends", "PrimaryKey": "key-of-those-who-send", "Rights": ["Send"]},
]


class Portal:
    """A server, and its portal's addresses."""

    def __init__(
        self, server: ServerProcess, more_stores: Path | None = None, provider: Provider | None = None
    ) -> None:
        self.server = server
        self.more_stores = more_stores
        """Where stores may be attached."""
        self.provider = provider
        """The identity provider that the server trusts."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/portal/"

    def client(self) -> BusClient:
        return BusClient(ClientSettings.from_connection_string(self.server.connection_string))

    def send(self, entity: str, count: int, **properties: Any) -> None:
        """Messages without a key go to the partitions in turn."""
        with self.client() as client:
            sender = client.sender(entity)
            for number in range(count):
                given = {name: each(number) if callable(each) else each for name, each in properties.items()}
                body = given.pop("body", b'{"number": %d}' % number)
                sender.post([encode(body, **{"message_id": f"{entity}-{number}", **given})])
            sender.flush()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def portal(tmp_path: Path) -> Iterator[Portal]:
    config = namespace(QUEUES, {"": RULES}, TOPICS)
    config["UserConfig"]["Namespaces"][0]["Name"] = "shop"
    more_stores = tmp_path / "more"
    more_stores.mkdir()
    provider = Provider("ES256", "first")
    (tmp_path / "keys.json").write_text(provider.document)
    # What stores can be made to do is not offered with several brokers (BENDYBUS_TEST_BROKERS=2).
    options = [] if BROKERS else ["--development", "--allow-store", str(more_stores)]
    options += ["--jwt-issuer", ISSUER, "--jwt-keys", str(tmp_path / "keys.json")]
    server = ServerProcess(tmp_path, config, options)
    server.start()
    yield Portal(server, more_stores, provider)
    if server.running:
        server.stop()


Visit = Callable[..., "Page"]


@pytest.fixture
def visit(chromium: Browser, portal: Portal) -> Iterator[Visit]:
    """A person who has signed in, at a page: `visit("entity?path=orders")`. `key`: a policy and its key."""
    pages: list[Page] = []
    complaints: list[str] = []

    def go(path: str = "", key: tuple[str, str] | None = None, **context: Any) -> Page:
        size = {"width": 1360, "height": 900}
        page = chromium.new_context(**{"viewport": size, **context}).new_page()
        pages.append(page)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.set_default_timeout(60_000)
        page.goto(f"{portal.url}sign-in")
        if key is None:
            page.fill("#secret", portal.server.connection_string)
        else:
            page.click("summary")
            page.fill("#policy", key[0])
            page.fill("#secret", key[1])
        page.click("button[type=submit]")
        page.wait_for_url(re.compile(r"/portal/(?!sign-in)"))
        if path:
            page.goto(portal.url + path)
        page.wait_for_selector("h1")
        return page

    yield go
    for page in pages:
        page.context.close()
    assert complaints == []
