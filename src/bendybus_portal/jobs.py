"""Work that takes longer than a click: resubmit, move, purge, send many. It has progress and can be stopped.

A job runs in a thread and belongs to a session, not to a page: it continues when the page is left, and every
page of the session shows it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from bendybus.errors import BrokerError

__all__ = ["Job", "JobState", "Jobs"]

# Of those that have ended, the last few are still shown.
KEPT_MAX: Final = 5
RUNNING_MAX: Final = 4


class JobState(StrEnum):
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class Job:
    def __init__(self, number: int, title: str, total: int | None) -> None:
        self.number = number
        self.title = title
        self.total = total
        """None if it is not known."""
        self.done = 0
        self.state = JobState.RUNNING
        self.error = ""

    @property
    def running(self) -> bool:
        return self.state in (JobState.RUNNING, JobState.STOPPING)

    @property
    def stopping(self) -> bool:
        """Asked by the work between two steps."""
        return self.state is JobState.STOPPING

    @property
    def fraction(self) -> float | None:
        if not self.running and self.state is JobState.DONE:
            return 1.0
        return None if not self.total else min(1.0, self.done / self.total)

    def stop(self) -> None:
        if self.state is JobState.RUNNING:
            self.state = JobState.STOPPING


class Jobs:
    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.all: list[Job] = []
        """The newest first."""

    @property
    def running(self) -> int:
        return sum(job.running for job in self.all)

    def start(self, title: str, work: Callable[[Job], None], total: int | None = None) -> Job:
        """Run `work` in a thread. It counts what it has done, and returns when it is told to stop."""
        if self.running >= RUNNING_MAX:
            raise BrokerError(f"{RUNNING_MAX} jobs are running. Wait for one of them, or stop it.")
        job = Job(next(self._numbers), title, total)
        self.all.insert(0, job)
        ended = [each for each in self.all if not each.running]
        for old in ended[KEPT_MAX:]:
            self.all.remove(old)
        threading.Thread(target=self._run, args=(job, work), name=f"job-{job.number}", daemon=True).start()
        return job

    def forget(self, job: Job) -> None:
        if not job.running and job in self.all:
            self.all.remove(job)

    @staticmethod
    def _run(job: Job, work: Callable[[Job], None]) -> None:
        try:
            work(job)
        except BrokerError as error:
            job.error, job.state = str(error), JobState.FAILED
        except Exception as error:
            job.error, job.state = f"It failed: {type(error).__name__}.", JobState.FAILED
            raise
        else:
            job.state = JobState.STOPPED if job.stopping else JobState.DONE
