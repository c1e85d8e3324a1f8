"""Runs of pipelines: reported by the runs, kept for a while, shown to those who may listen."""

from __future__ import annotations

import json

import pytest

from bendybus.admin import pipeline_routes, pipeline_runs
from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import ArgumentError, BrokerError
from bendybus.management.json_api import ask_json
from bendybus.management.run_reports import RunReporter
from bendybus.testing import Server


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture
def namespace(server):
    with server.namespace(queues=["orders"]) as made:
        yield ConnectionString.parse(made.connection_string)


def test_a_run_is_reported_with_progress_and_its_summary(namespace):
    reporter = RunReporter(namespace, "report", "orders")
    reporter.tell("Reading", 10, 40)
    reporter.end("finished", 40, {"sections": [{"messages": 40}]})
    (run,) = ask_json(namespace, "GET", "/$pipelines")["runs"]
    assert (run["pipeline"], run["about"], run["state"]) == ("report", "orders", "finished")
    assert (run["phase"], run["messages"], run["total"]) == ("Reading", 40, 40)
    assert 0 < run["startedAt"] <= run["updatedAt"]
    assert "summary" not in run
    whole = ask_json(namespace, "GET", f"/$pipelines/{run['id']}")
    assert whole["summary"] == {"sections": [{"messages": 40}]}


def test_a_summary_that_is_too_long_is_reported_without_its_lists(namespace):
    reporter = RunReporter(namespace, "triage", "orders")
    reporter.end("finished", 1, {"seconds": 2, "groups": ["x" * 100] * 1000})
    run = ask_json(namespace, "GET", "/$pipelines")["runs"][0]
    assert ask_json(namespace, "GET", f"/$pipelines/{run['id']}")["summary"] == {"seconds": 2}


def test_a_server_that_cannot_be_reached_does_not_disturb_the_run():
    gone = ConnectionString.parse(
        "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    )
    reporter = RunReporter(gone, "capture", "orders")
    reporter.tell("Reading", 1, None)
    reporter.end("failed", error="no matter")


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"state": "dancing"},
        {"state": "running", "color": "red"},
        {"state": "running", "messages": "many"},
        {"state": "running", "phase": 1},
        {"state": "running", "summary": []},
        [],
    ],
)
def test_a_report_that_makes_no_sense_is_refused(namespace, told):
    with pytest.raises(ArgumentError):
        ask_json(namespace, "PUT", "/$pipelines/1", told)
    with pytest.raises(BrokerError):
        ask_json(namespace, "GET", "/$pipelines/1")


@pytest.mark.parametrize(
    "told", [{"state": "running", "phase": "\ud800"}, {"state": "running", "summary": {"rate": float("nan")}}]
)
def test_a_report_that_no_answer_could_show_is_refused(namespace, told):
    with pytest.raises(ArgumentError):
        ask_json(namespace, "PUT", "/$pipelines/unshowable", told)
    assert "unshowable" not in [run["id"] for run in ask_json(namespace, "GET", "/$pipelines")["runs"]]


def test_only_the_last_runs_are_kept_and_none_is_large(namespace, monkeypatch):
    monkeypatch.setattr(pipeline_runs, "RUNS_MAX", 3)
    for number in range(5):
        ask_json(namespace, "PUT", f"/$pipelines/{number}", {"state": "running"})
    kept = [run["id"] for run in ask_json(namespace, "GET", "/$pipelines")["runs"]]
    assert kept == ["4", "3", "2"]
    large = {"state": "running", "phase": "x" * pipeline_routes.RUN_BYTES_MAX}
    assert len(json.dumps(large)) > pipeline_routes.RUN_BYTES_MAX
    with pytest.raises(ArgumentError):
        ask_json(namespace, "PUT", "/$pipelines/5", large)
