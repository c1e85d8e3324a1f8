"""What pages do with messages, through the operations that the command line uses. Everything blocks."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from bendybus.amqp.annotations import SCHEDULED_ENQUEUE_TIME
from bendybus.amqp.types import Array, Described, Int, Timestamp, ULong
from bendybus.client import BusClient, ReceivedMessage
from bendybus.errors import ArgumentError, MessageNotFound
from bendybus.names import PARTITION_SHIFT
from bendybus.operations.copies import copy_of
from bendybus.operations.drafts import Draft, shown_message
from bendybus.operations.moving import Move
from bendybus.operations.peeking import SESSION_WAIT_MIN_S, State, session_filter
from bendybus.operations.purging import purged
from bendybus_portal.access import Access
from bendybus_portal.jobs import Job
from bendybus_portal.peeking import batches, find_message, reason_of

__all__ = [
    "DEAD_LETTERS",
    "Reasons",
    "move_work",
    "origin_of",
    "parse_properties",
    "purge_work",
    "remove_numbers",
    "resubmit_work",
    "scan_reasons",
    "send_work",
]

DEAD_LETTERS: Final = "$DeadLetterQueue"

# Grouped by reason, without their bodies.
REASONS_SCANNED_MAX: Final = 20_000

# Properties that dead-lettering adds.
ADDED: Final = ("DeadLetterReason", "DeadLetterErrorDescription")

SELECTOR: Final = "apache.org:selector-filter:string"
SELECTOR_CODE: Final = 0x0000_468C_0000_0004


# -- dead letters -------------------------------------------------------------------


@dataclass(slots=True)
class Reasons:
    counts: Counter[str] = field(default_factory=Counter)
    scanned: int = 0
    whole: bool = True


def scan_reasons(access: Access, path: str) -> Reasons:
    """How many dead letters have which reason."""
    reasons = Reasons()
    with access.bus() as client:
        for batch in batches(client.management(f"{path}/{DEAD_LETTERS}"), without_body=True):
            reasons.counts.update(map(reason_of, batch))
            reasons.scanned += len(batch)
            if reasons.scanned >= REASONS_SCANNED_MAX:
                reasons.whole = False
                break
    return reasons


def origin_of(path: str) -> str:
    """Where an entity's messages were sent to: a subscription's to its topic."""
    at = path.lower().find("/subscriptions/")
    return path if at < 0 else path[:at]


def _new_id(message: ReceivedMessage) -> str | None:
    return str(uuid.uuid4())


def _same_id(message: ReceivedMessage) -> str | None:
    return None


def resubmit_work(access: Access, path: str, to: str, reason: str, new_ids: bool, job: Job) -> None:
    """Send dead letters again and complete them: all, or those with one reason."""
    filters = None
    if reason:
        quoted = reason.replace("'", "''")
        condition = f"DeadLetterReason = '{quoted}'" if reason != "no reason" else "DeadLetterReason IS NULL"
        filters = {SELECTOR: Described(ULong(SELECTOR_CODE), condition)}

    new_id = _new_id if new_ids else _same_id
    move = Move(f"{path}/{DEAD_LETTERS}", to, job.total, new_id, without=ADDED)

    def tell() -> None:
        job.done = move.moved
        move.stopped = move.stopped or job.stopping

    move.tell = tell
    with access.bus(timeout_s=60) as source, access.bus(timeout_s=60) as target:
        sender = target.sender(to)
        sender.check()
        receiver = source.receiver(move.source, filters=filters)
        receiver.check()
        if filters is not None and not filters.keys() <= receiver.filters_in_place:
            raise ArgumentError(
                "This server cannot receive dead letters by their reason. Resubmit all of them."
            )
        move.run(receiver, sender)
    job.done = move.moved


def move_work(
    access: Access,
    source: str,
    target: str,
    job: Job,
    *,
    sessions: bool = False,
    session_id: str = "",
    new_ids: bool = False,
) -> None:
    """Move the messages that are there, to another entity; of one session, if it is named.

    `sessions`: the source has sessions, which are moved one after the other. One that others hold stays.
    """
    move = Move(source, target, job.total, _new_id if new_ids else _same_id)

    def tell() -> None:
        job.done = move.moved
        move.stopped = move.stopped or job.stopping

    move.tell = tell
    # The server answers an attach to the next free session when there is one: this long and no longer.
    patience = (
        {"timeout_s": SESSION_WAIT_MIN_S, "retries": 0} if sessions else {"timeout_s": 60, "retries": 1}
    )
    with access.bus(**patience) as from_client, access.bus(timeout_s=60) as to_client:
        sender = to_client.sender(target)
        sender.check()
        if sessions and not session_id:
            move.run_sessions(from_client, sender)
        else:
            filters = session_filter(session_id) if session_id else None
            move.run(from_client.receiver(source, filters=filters), sender)
    job.done = move.moved


def remove_numbers(client: BusClient, path: str, numbers: list[int]) -> int:
    """Remove exactly these messages; those that no longer exist are skipped. Bendybus only."""
    answer = client.management(path).request(
        "bendybus:complete-numbers", {"sequence-numbers": Array(int, [*numbers])}
    )
    return int((answer or {}).get("removed", len(numbers)))


def resubmit_numbers(access: Access, path: str, numbers: list[int], to: str, new_ids: bool, job: Job) -> None:
    """Send these dead letters again, one after the other, and then remove them."""
    letters = f"{path}/{DEAD_LETTERS}"
    with access.bus() as client:
        sender = client.sender(to)
        for number in numbers:
            if job.stopping:
                return
            try:
                message = find_message(access, letters, number)
            except MessageNotFound:
                continue
            new_id = str(uuid.uuid4()) if new_ids else None
            sender.send([copy_of(message, message_id=new_id, without=ADDED)])
            remove_numbers(client, letters, [number])
            job.done += 1


# -- many at once -------------------------------------------------------------------


def purge_work(access: Access, path: str, states: list[State], job: Job) -> None:
    with access.bus(timeout_s=60) as client:
        for state in states:
            for count in purged(client, path, state):
                job.done += count
                if job.stopping:
                    return


def send_work(access: Access, path: str, draft: Draft, count: int, job: Job) -> None:
    with access.bus(timeout_s=60) as client:
        sender = client.sender(path)
        payload = draft.encoded()
        for number in range(count):
            if job.stopping:
                break
            if "message_id" not in draft.texts and count > 1:
                draft.texts["message_id"] = str(uuid.uuid4())
                payload = draft.encoded()
                del draft.texts["message_id"]
            sender.post([payload], draft.key)
            if number % 100 == 99:
                sender.flush()
                job.done = number + 1
        sender.flush()
        job.done = sender.sent


def cancel_scheduled(access: Access, path: str, number: int) -> ReceivedMessage:
    """Returns the message, which no longer exists."""
    message = find_message(access, path, number)
    with access.bus() as client:
        client.management(path).request(
            "com.microsoft:cancel-scheduled-message", {"sequence-numbers": Array(int, [number])}
        )
    return message


def schedule_again(access: Access, path: str, message: ReceivedMessage) -> None:
    """The same message for the same time, under a new number."""
    with access.bus() as client:
        due = message.annotation(SCHEDULED_ENQUEUE_TIME)
        key = message.session_id or message.partition_key
        client.sender(path).send([copy_of(message, scheduled_at=due)], key)


def parse_properties(text: str) -> dict[str, object]:
    """One a line: `name=text`, or `name:=json` for a number, true or false."""
    found: dict[str, object] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.rstrip(":").strip():
            raise ArgumentError(
                f"'{line[:60]}' is not a property: write name=text, or name:=12 for a number."
            )
        if not name.endswith(":"):
            found[name.strip()] = value.strip()
            continue
        try:
            read = json.loads(value)
        except ValueError:
            raise ArgumentError(
                f"'{line[:60]}': after := a number, true, false or \"text\" is expected."
            ) from None
        if not (read is None or isinstance(read, str | bool | int | float)):
            raise ArgumentError(f"'{line[:60]}': a property is a text, a number, true, false or null.")
        found[name[:-1].strip()] = read
    return found


# -- sessions -----------------------------------------------------------------------


def list_sessions(access: Access, path: str, skip: int, count: int) -> list[str]:
    """Sessions with messages or a state."""
    asked = {
        "last-updated-time": Timestamp(253_402_300_800_000),
        "skip": Int(skip),
        "top": Int(count),
    }
    with access.bus() as client:
        answer = client.management(path).request("com.microsoft:get-message-sessions", asked)
    return [] if answer is None else [str(each) for each in answer["sessions-ids"].values]


def session_state(access: Access, path: str, session_id: str) -> bytes | None:
    with access.bus(retries=0, timeout_s=SESSION_WAIT_MIN_S + 5) as client:
        client.receiver(path, filters=session_filter(session_id)).check()
        answer = client.management(path).request(
            "com.microsoft:get-session-state", {"session-id": session_id}
        )
    state = (answer or {}).get("session-state")
    return state if isinstance(state, bytes) else None


def set_session_state(access: Access, path: str, session_id: str, state: bytes | None) -> None:
    with access.bus(retries=0, timeout_s=SESSION_WAIT_MIN_S + 5) as client:
        client.receiver(path, filters=session_filter(session_id)).check()
        asked = {"session-id": session_id, "session-state": state}
        client.management(path).request("com.microsoft:set-session-state", asked)


def dead_letter_session(access: Access, path: str, session_id: str, reason: str, job: Job) -> None:
    with access.bus(retries=0, timeout_s=30) as client:
        receiver = client.receiver(path, filters=session_filter(session_id))
        while not job.stopping:
            messages = receiver.receive(100, timeout_s=1.0)
            if not messages:
                return
            receiver.dead_letter(messages, reason, "Dead-lettered in the portal with its whole session.")
            job.done += len(messages)


def shown_fields(message: ReceivedMessage) -> dict[str, Any]:
    """All fields of a message but its body."""
    values = shown_message(message)
    for name in ("body", "bodyBase64", "applicationProperties"):
        values.pop(name, None)
    values["partition"] = message.sequence_number >> PARTITION_SHIFT
    # A message that was peeked has no lock, and says so with the beginning of time.
    if str(values.get("lockedUntil", "")).startswith("1970-"):
        del values["lockedUntil"]
    return values
