"""The transition tables are whole: nothing unreachable, nothing that cannot end."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import pytest

from bendybus.engine.states import (
    CONNECTION,
    LINK,
    SASL,
    SESSION,
    ConnectionState,
    LinkState,
    SaslState,
    SessionState,
)

Table = Mapping[tuple[Enum, Enum], Enum]

MACHINES = [
    pytest.param(SASL, SaslState.START, SaslState.DONE, id="sasl"),
    pytest.param(CONNECTION, ConnectionState.START, ConnectionState.END, id="connection"),
    pytest.param(SESSION, SessionState.UNMAPPED, SessionState.UNMAPPED, id="session"),
    pytest.param(LINK, LinkState.DETACHED, LinkState.DETACHED, id="link"),
]


def reachable(table: Table, start: Enum) -> set[Enum]:
    """States that some inputs lead to from `start`, itself only if a way leads back."""
    seen: set[Enum] = set()
    frontier = {start}
    while frontier:
        frontier = {after for (before, _), after in table.items() if before in frontier} - seen
        seen |= frontier
    return seen


@pytest.mark.parametrize(("table", "start", "end"), MACHINES)
def test_every_state_is_reachable(table: Table, start: Enum, end: Enum) -> None:
    assert reachable(table, start) | {start} == set(type(start))


@pytest.mark.parametrize(("table", "start", "end"), MACHINES)
def test_every_state_leads_to_the_end(table: Table, start: Enum, end: Enum) -> None:
    assert all(end in reachable(table, state) for state in type(start) if state is not end)


@pytest.mark.parametrize(("table", "start", "end"), MACHINES)
def test_every_input_has_a_place(table: Table, start: Enum, end: Enum) -> None:
    inputs = {happening for _, happening in table}
    missing = set(type(next(iter(inputs)))) - inputs
    # No mechanism we offer as a client has a second step, so a challenge is always an error.
    assert {happening.name for happening in missing} <= {"RECV_CHALLENGE"}
