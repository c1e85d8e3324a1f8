"""The states of sessions: read from an entity that is moved, and written into its copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bendybus.amqp.types import Array, Int, Timestamp
from bendybus.errors import Unavailable
from pyspark_servicebus.pipelines.pipeline import Bus

__all__ = ["copy_states", "read_states"]

PAGE: Final = 100
WRITTEN_BYTES_AT_ONCE: Final = 512 * 1024


def read_states(bus: Bus, entity: str) -> dict[str, bytes]:
    """All states by session id. `SessionCannotBeLocked` if a receiver holds one of the sessions."""
    found: dict[str, bytes] = {}
    with bus.client(entity) as client:
        management = client.management()
        skip = 0
        while True:
            # Those whose state was set since 1970, which are all that have one.
            answer = management.request(
                "com.microsoft:get-message-sessions",
                {"last-updated-time": Timestamp(0), "skip": Int(skip), "top": Int(PAGE)},
            )
            listed = None if answer is None else answer.get("sessions-ids")
            page = list(listed.values) if isinstance(listed, Array) else list(listed or ())
            left = page
            while left:
                told = management.request("bendybus:get-session-states", {"session-ids": left}) or {}
                states = told["states"]
                found |= {
                    each["session-id"]: bytes(each["session-state"])
                    for each in states
                    if each["session-state"] is not None
                }
                left = left[len(states) :]
            if len(page) < PAGE:
                return found
            skip += len(page)


def copy_states(bus: Bus, source: str, target: str) -> int:
    """Give the target the states of the source. Returns how many there are."""
    wanted = read_states(bus, source)
    with bus.client(target) as client:
        for share in _shares(wanted):
            states = [{"session-id": name, "session-state": state} for name, state in share.items()]
            client.management().request("bendybus:set-session-states", {"states": states})
    if read_states(bus, target) != wanted:
        raise Unavailable(f"The session states of '{target}' differ from those of '{source}': run it again.")
    return len(wanted)


def _shares(states: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    share: dict[str, bytes] = {}
    size = 0
    for session_id, state in states.items():
        if share and (size + len(state) > WRITTEN_BYTES_AT_ONCE or len(share) >= PAGE):
            yield share
            share, size = {}, 0
        share[session_id] = state
        size += len(state) + len(session_id)
    if share:
        yield share
