"""Versions of the API, and lists in pages."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from bendybus.arm.access import Caller
from bendybus.arm.calls import Call, check_api_version, listed
from bendybus.arm.errors import InvalidApiVersion, MissingApiVersion
from bendybus.arm.resources import Resource
from bendybus.errors import ArgumentError

URL = "https://localhost:5300/subscriptions/s/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces"


def call(**query: str) -> Call:
    resource = Resource.parse(urlsplit(URL).path)
    return Call(resource, {}, {"api-version": "2026-01-01"} | query, {}, Caller("t"), urlsplit(URL))


async def show(number):
    return {"name": number}


async def page(count, **query):
    body, _ = await listed(call(**query), range(count), show)
    return [each["name"] for each in body["value"]], body.get("nextLink")


async def test_a_page_has_a_hundred_and_says_where_the_next_one_is():
    names, link = await page(250)
    assert names == list(range(100))
    assert link == f"{URL}?api-version=2026-01-01&%24skip=100"
    assert await page(250, **{"$skip": "200"}) == (list(range(200, 250)), None)
    assert await page(100) == (list(range(100)), None)


async def test_top_limits_how_many_come_over_all_pages():
    assert await page(250, **{"$top": "5"}) == (list(range(5)), None)
    names, link = await page(250, **{"$top": "110"})
    assert len(names) == 100
    assert link.endswith("%24top=10&%24skip=100")


@pytest.mark.parametrize("value", ["-1", "x", "1e3", "9" * 20])
async def test_a_limit_is_a_number(value):
    with pytest.raises(ArgumentError, match="must be a number"):
        await page(1, **{"$top": value})


def test_versions():
    for version in ("2017-04-01", "2022-10-01-preview", "2026-01-01"):
        check_api_version({"api-version": version})
    with pytest.raises(MissingApiVersion):
        check_api_version({})
    for version in ("2015-08-01", "2021-05", "latest", "2026-01-01-alpha"):
        with pytest.raises(InvalidApiVersion):
            check_api_version({"api-version": version})
