"""What a broker says of others that it cannot reach."""

from __future__ import annotations

import pytest

from bendybus.cluster.peers import Peer


async def test_nothing_is_said_of_an_owner_that_owns_no_partition_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a planned move: the store had no owner for a moment."""
    nobody = Peer("", "no broker owns its messaging store 's1' now")
    nobody.await_owner()
    nobody._give_up()
    assert not caplog.records
    nobody.close()
