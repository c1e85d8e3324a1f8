"""Jobs: progress, stopping, failing."""

from __future__ import annotations

import threading

import pytest

from bendybus.errors import ArgumentError, BrokerError
from bendybus_portal.jobs import RUNNING_MAX, Job, Jobs, JobState


def wait_for(job: Job, work_ended: threading.Event) -> None:
    assert work_ended.wait(10)
    while job.running:
        pass


def test_a_job_counts_and_ends():
    ended = threading.Event()

    def work(job: Job) -> None:
        job.done = 10
        ended.set()

    job = Jobs().start("Resubmitting", work, total=10)
    wait_for(job, ended)
    assert (job.state, job.done, job.fraction) == (JobState.DONE, 10, 1.0)


def test_a_job_stops_when_it_is_told_to():
    began, ended = threading.Event(), threading.Event()
    told = threading.Event()

    def work(job: Job) -> None:
        began.set()
        assert told.wait(10)
        assert job.stopping
        ended.set()

    jobs = Jobs()
    job = jobs.start("Purging", work)
    assert began.wait(10) and job.fraction is None
    jobs.forget(job)
    assert jobs.all == [job]
    job.stop()
    told.set()
    wait_for(job, ended)
    assert job.state is JobState.STOPPED
    jobs.forget(job)
    assert jobs.all == []


def test_a_refusal_is_kept_in_the_servers_words():
    ended = threading.Event()

    def work(job: Job) -> None:
        ended.set()
        raise ArgumentError("no such queue")

    job = Jobs().start("Moving", work)
    wait_for(job, ended)
    assert (job.state, job.error) == (JobState.FAILED, "no such queue")


def test_only_a_few_jobs_run_at_a_time():
    go = threading.Event()
    jobs = Jobs()
    running = [jobs.start("Waiting", lambda job: go.wait(10) and None) for _ in range(RUNNING_MAX)]
    with pytest.raises(BrokerError):
        jobs.start("One more", lambda job: None)
    go.set()
    while any(job.running for job in running):
        pass
