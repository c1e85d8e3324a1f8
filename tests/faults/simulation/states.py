"""The states of sessions: what somebody who holds one may find there.

The last one that was answered, or any that was asked for since. What a holder is
given is what the next one finds, unless another has been asked for.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["SessionStates"]


class SessionStates:
    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self._possible: dict[str, set[bytes | None]] = {}

    def ask(self, session_id: str, state: bytes | None) -> None:
        self._possible.setdefault(session_id, {None}).add(state)

    def answered(self, session_id: str, state: bytes | None) -> None:
        self._possible[session_id] = {state}

    def got(self, session_id: str, state: bytes | None) -> None:
        possible = self._possible.setdefault(session_id, {None})
        if state not in possible:
            self._violate(
                f"the state of session {session_id} is {state!r}, not one of {sorted(map(str, possible))}"
            )
        self._possible[session_id] = {state}
