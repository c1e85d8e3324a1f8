"""The form that puts completed messages back, as `bendybus replay` does (docs/reference/replay.md)."""

from __future__ import annotations

from bendybus.client import BusClient
from bendybus.errors import ArgumentError
from bendybus.operations.drafts import instant
from bendybus.operations.replaying import Replaying
from bendybus_portal.access import Access, in_thread
from bendybus_portal.components.dialogs import FormDialog, confirm, field, form_dialog
from bendybus_portal.jobs import Job
from bendybus_portal.sessions import Session
from bendybus_portal.shown import plural

__all__ = ["replay_form"]


def replay_form(session: Session, path: str) -> FormDialog:
    """It counts first, and asks before anything is put back."""

    async def replay() -> None:
        access, which = session.access, _Chosen(since.value, until.value, key.value, numbers.value)
        count = await in_thread(which.count, access, path)
        if not count:
            raise ArgumentError("No completed message that is kept matches.")
        found = plural(count, "completed message")
        if await confirm(
            "Put messages back?", f"{found} will be put back into {path}.", "Put back", danger=False
        ):
            session.jobs.start(
                f"Putting messages back into {path}", lambda job: which.put_back(access, path, job), count
            )

    with form_dialog(f"Replay completed messages of {path}", "Replay", replay) as form:
        since = field("Completed from", example="2026-11-16T10:00Z", hint="empty: all that are kept")
        until = field("Completed before", example="2026-11-16T11:30Z")
        key = field("Session id or partition key")
        numbers = field("Sequence numbers", hint="separated by spaces; not together with a key")
    return form


class _Chosen:
    """Which messages a person has asked for."""

    def __init__(self, since: str, until: str, key: str, numbers: str) -> None:
        self._since = instant(since.strip()) if since.strip() else None
        self._until = instant(until.strip()) if until.strip() else None
        self._key = key.strip() or None
        listed = numbers.replace(",", " ").split()
        if not all(each.isdigit() for each in listed):
            raise ArgumentError("Sequence numbers are whole numbers.")
        self._numbers = tuple(map(int, listed))
        if self._numbers and self._key is not None:
            raise ArgumentError("Give sequence numbers or a key, and not both.")

    def count(self, access: Access, path: str) -> int:
        with access.bus(timeout_s=60) as client:
            counting = self._replaying(client, path)
            found = counting.count()
            # What is completed from now on is not meant.
            self._until = counting.completed_before_ms
            return found

    def put_back(self, access: Access, path: str, job: Job) -> None:
        with access.bus(timeout_s=60) as client:
            for count in self._replaying(client, path).run():
                job.done += count
                if job.stopping:
                    return

    def _replaying(self, client: BusClient, path: str) -> Replaying:
        return Replaying(
            client,
            path,
            key=self._key,
            numbers=self._numbers,
            completed_from_ms=self._since,
            completed_before_ms=self._until,
        )
