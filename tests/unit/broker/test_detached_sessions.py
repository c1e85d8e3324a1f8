"""The holder of a session whose client has no connection wakes all requests that wait in it."""

from __future__ import annotations

import asyncio

from bendybus.broker.detached_sessions import DetachedSession


async def test_all_requests_that_wait_are_woken_and_a_later_one_waits_again() -> None:
    session = DetachedSession()
    for change in (session.wake, session.lost):
        waiting = [asyncio.create_task(session.news(60.0)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        change()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in results] == [asyncio.CancelledError, type(None), type(None)]


async def test_a_request_waits_no_longer_than_it_wants_to() -> None:
    session = DetachedSession()
    await session.news(0.001)
    assert not session._waiting
