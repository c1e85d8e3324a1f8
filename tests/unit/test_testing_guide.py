"""The guide to testing: its fixtures for other languages are run by `make interop`, and are short."""

from __future__ import annotations

import pytest

from interop import testing_guide

LANGUAGES = {
    "Node.js": ["broker.mjs", "orders.test.mjs"],
    "Java": ["WithBroker.java", "OrdersTest.java"],
    "Go": ["broker_test.go", "orders_test.go"],
    ".NET": ["BrokerFixture.cs", "OrdersTests.cs"],
}


@pytest.mark.parametrize("heading", LANGUAGES)
def test_a_language_has_a_fixture_of_at_most_forty_lines_and_a_test(heading: str) -> None:
    found = testing_guide.files(heading)
    assert list(found) == LANGUAGES[heading]
    for code in found.values():
        assert len([line for line in code.splitlines() if line.strip()]) <= 40


def test_every_language_of_the_page_is_run() -> None:
    _, _, languages = testing_guide.PAGE.read_text().partition("## Other languages\n")
    headings = [line.removeprefix("### ") for line in languages.splitlines() if line.startswith("### ")]
    assert headings == list(LANGUAGES)
