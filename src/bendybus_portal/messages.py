"""What pages do with messages, through the operations that the command line uses. Everything blocks."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from bendybus.amqp.types import Array, Described, Int, Timestamp, ULong
from bendybus.client import BusClient, Management, ReceivedMessage
from bendybus.errors import ArgumentError, MessageNotFound
from bendybus.names import PARTITION_SHIFT
from bendybus.operations.copies import copy_of
from bendybus.operations.drafts import Draft, shown_message
from bendybus.operations.moving import Move
from bendybus.operations.peeking import SESSION_WAIT_MIN_S, State, session_filter
from bendybus.operations.purging import purged
from bendybus_portal.access import Access
from bendybus_portal.jobs import Job

__all__ = [
    "DEAD_LETTERS",
    "Filters",
    "PeekedPage",
    "Reasons",
    "find_message",
    "origin_of",
    "parse_properties",
    "peek_page",
    "purge_work",
    "reason_of",
    "remove_numbers",
    "resubmit_work",
    "scan_reasons",
    "send_work",
]

DEAD_LETTERS: Final = "$DeadLetterQueue"

# On a page.
PAGE: Final = 50
# Looked at for one page, however few match: a second or two.
SCANNED_MAX: Final = 5000
PEEK_BATCH: Final = 250
# Grouped by reason, without their bodies.
REASONS_SCANNED_MAX: Final = 20_000

# Properties that dead-lettering adds.
ADDED: Final = ("DeadLetterReason", "DeadLetterErrorDescription")

SELECTOR: Final = "apache.org:selector-filter:string"
SELECTOR_CODE: Final = 0x0000_468C_0000_0004


@dataclass(frozen=True, slots=True)
class Filters:
    """Which messages; what is empty does not matter."""

    state: str = ""
    partition: int | None = None
    session_id: str = ""
    text: str = ""
    """In the body, the id, the subject or a property."""
    reason: str = ""
    """Of dead letters."""
    since_ms: int = 0

    def matches(self, message: ReceivedMessage) -> bool:
        if self.state and self.state != ("active", "deferred", "scheduled")[message.state]:
            return False
        if self.reason and self.reason != reason_of(message):
            return False
        if self.since_ms and message.enqueued_time_ms < self.since_ms:
            return False
        return not self.text or self.text.lower() in _searched(message)


def _searched(message: ReceivedMessage) -> str:
    properties = [f"{name}={value}" for name, value in message.application_properties.items()]
    texts = (message.message_id, message.subject, message.correlation_id, *properties)
    return "\n".join(
        [message.body.decode("utf-8", "replace"), *(str(text) for text in texts if text)]
    ).lower()


@dataclass(frozen=True, slots=True)
class PeekedPage:
    messages: list[ReceivedMessage]
    following: int | None
    """The sequence number to continue from; None at the end."""
    scanned: int


def _peeked(
    management: Management, first: int, session_id: str = "", *, without_body: bool = False
) -> Iterator[list[ReceivedMessage]]:
    while True:
        asked: dict[str, object] = {"from-sequence-number": first, "message-count": Int(PEEK_BATCH)}
        if session_id:
            asked["session-id"] = session_id
        if without_body:
            asked["omit-message-body"] = True
        answer = management.request("com.microsoft:peek-message", asked)
        if answer is None:
            return
        messages = [ReceivedMessage(found["message"]) for found in answer["messages"]]
        yield messages
        first = max(message.sequence_number for message in messages) + 1


def peek_page(access: Access, path: str, filters: Filters, first: int = 0) -> PeekedPage:
    """Messages in the order of their numbers, and so partition after partition."""
    partition = filters.partition
    if partition is not None:
        first = max(first, partition << PARTITION_SHIFT)
    found: list[ReceivedMessage] = []
    scanned = 0
    with access.bus() as client:
        for batch in _peeked(client.management(path), first, filters.session_id):
            for message in batch:
                if partition is not None and message.sequence_number >> PARTITION_SHIFT != partition:
                    return PeekedPage(found, None, scanned)
                if len(found) == PAGE or scanned >= SCANNED_MAX:
                    return PeekedPage(found, message.sequence_number, scanned)
                scanned += 1
                if filters.matches(message):
                    found.append(message)
    return PeekedPage(found, None, scanned)


def find_message(access: Access, path: str, number: int) -> ReceivedMessage:
    """`MessageNotFound` if it has gone."""
    asked = {"from-sequence-number": number, "message-count": Int(1)}
    with access.bus() as client:
        answer = client.management(path).request("com.microsoft:peek-message", asked)
    found = [] if answer is None else [ReceivedMessage(each["message"]) for each in answer["messages"]]
    if not found or found[0].sequence_number != number:
        raise MessageNotFound(f"The message {number} is no longer in '{path}'.")
    return found[0]


# -- dead letters -------------------------------------------------------------------


def reason_of(message: ReceivedMessage) -> str:
    return str(message.application_properties.get("DeadLetterReason") or "no reason")


@dataclass(slots=True)
class Reasons:
    counts: Counter[str] = field(default_factory=Counter)
    scanned: int = 0
    whole: bool = True


def scan_reasons(access: Access, path: str) -> Reasons:
    """How many dead letters have which reason."""
    reasons = Reasons()
    with access.bus() as client:
        for batch in _peeked(client.management(f"{path}/{DEAD_LETTERS}"), 0, without_body=True):
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


def resubmit_work(access: Access, path: str, to: str, reason: str, new_ids: bool, job: Job) -> None:
    """Send dead letters again and complete them: all, or those with one reason."""
    filters = None
    if reason:
        quoted = reason.replace("'", "''")
        condition = f"DeadLetterReason = '{quoted}'" if reason != "no reason" else "DeadLetterReason IS NULL"
        filters = {SELECTOR: Described(ULong(SELECTOR_CODE), condition)}

    def new_id(message: ReceivedMessage) -> str | None:
        return str(uuid.uuid4()) if new_ids else None

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


def move_work(access: Access, source: str, target: str, job: Job) -> None:
    """Move the messages that are there, to another entity."""
    move = Move(source, target, job.total, lambda message: None)

    def tell() -> None:
        job.done = move.moved
        move.stopped = move.stopped or job.stopping

    move.tell = tell
    with access.bus(timeout_s=60) as from_client, access.bus(timeout_s=60) as to_client:
        sender = to_client.sender(target)
        sender.check()
        move.run(from_client.receiver(source), sender)
    job.done = move.moved


def remove_numbers(client: BusClient, path: str, numbers: list[int]) -> int:
    """Remove exactly these messages; what has gone already is skipped. Bendybus only."""
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


def cancel_scheduled(access: Access, path: str, number: int) -> None:
    with access.bus() as client:
        client.management(path).request(
            "com.microsoft:cancel-scheduled-message", {"sequence-numbers": Array(int, [number])}
        )


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
