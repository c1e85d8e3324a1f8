"""Who may set which field of a message: one record is shared by partition, store, host and links."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "bendybus"

# Field -> the modules that set it on a message they did not just make. `domain/messages.py` makes copies,
# `store/encoding.py` reads messages back, `cluster/frames.py` reads those of other brokers.
SETTERS: dict[str, set[str]] = {
    "lock_token": {"cluster/frames.py", "domain/locks.py", "domain/messages.py"},
    # Session locks have a field of the same name.
    "locked_until": {"cluster/frames.py", "domain/locks.py", "domain/messages.py", "domain/session_locks.py"},
    "row_id": {
        *("store/encoding.py", "store/memory.py", "store/postgres/store.py"),
        *("broker/copying.py", "cluster/frames.py", "domain/messages.py"),
    },
    "payload": {
        *("broker/payload_cache.py", "broker/partition_host.py", "broker/topic_host.py"),
        *("broker/copying.py", "store/memory.py"),
    },
    # Scheduling inside a transaction gives out numbers that were reserved before.
    "sequence_number": {
        *("domain/intake.py", "domain/outbox.py", "domain/messages.py"),
        *("gateway/management/scheduling.py", "store/encoding.py", "cluster/frames.py"),
        "domain/topic.py",  # on a copy that only rules see
    },
    "delivery_count": {
        "domain/completed.py",
        "domain/messages.py",
        "cluster/frames.py",
        "domain/stock.py",
        "domain/handlers/settling.py",
        "store/encoding.py",
    },
    "subqueue": {
        "cluster/frames.py",
        "domain/messages.py",
        "domain/stock.py",
        "domain/copies.py",
        "domain/fanout.py",
        "gateway/management/inserting.py",
        "store/encoding.py",
    },
    "enqueued_at": {
        *(
            "cluster/frames.py",
            "domain/intake.py",
            "domain/messages.py",
            "domain/schedule.py",
            "domain/topic.py",
        ),
        "envelope/admission.py",  # when the gateway admitted it, until its partition does
        "envelope/transfer.py",  # the same for the forwarder
        "store/encoding.py",
    },
}


def setters_of(field: str) -> set[str]:
    found: set[str] = set()
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        if f".{field}" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
                continue
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if node.attr == field and not is_own:
                found.add(path.relative_to(ROOT).as_posix())
    return found


@pytest.mark.parametrize("field", SETTERS)
def test_a_field_of_a_message_is_set_only_where_it_may_be(field: str) -> None:
    assert setters_of(field) == SETTERS[field]
