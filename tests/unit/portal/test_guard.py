"""Requests of other sites are refused."""

from __future__ import annotations

import pytest

from bendybus_portal.guard import cookie_name, is_foreign

HOST = "127.0.0.1:5672"


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({"origin": f"http://{HOST}"}, False),
        # A proxy with TLS before the server.
        ({"origin": f"https://{HOST}"}, False),
        ({"origin": "http://127.0.0.1:3000"}, True),
        ({"origin": "https://evil.example"}, True),
        ({"origin": "null"}, True),
        ({}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, True),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}, True),
    ],
)
def test_a_request_of_another_site_is_told_by_its_headers(headers, foreign):
    assert is_foreign({"host": HOST, **headers}) is foreign


def test_two_servers_on_one_machine_have_cookies_of_their_own():
    names = {cookie_name(host) for host in ("localhost:5672", "localhost:5673", "localhost", "[::1]:99")}
    assert len(names) == 4
    assert cookie_name("bad:port") == cookie_name(None) == cookie_name("localhost")
