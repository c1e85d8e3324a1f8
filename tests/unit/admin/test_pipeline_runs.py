"""Runs of pipelines outlive the server."""

from __future__ import annotations

import json
import logging

from bendybus.admin import pipeline_runs
from bendybus.admin.pipeline_runs import PipelineRuns
from bendybus.names import Instant

TOLD = {"pipeline": "report", "about": "orders", "state": "finished", "phase": "", "messages": 3, "total": 3}


def told(**changes):
    return {**TOLD, "error": "", "summary": {}, **changes}


async def test_runs_are_found_again_by_the_next_server(tmp_path):
    folder = tmp_path / "runs"
    runs = PipelineRuns(folder)
    await runs.put("a/../b", told(state="running"), Instant(1000))
    await runs.put("second", told(summary={"sections": [1]}), Instant(2000))
    await runs.put("a/../b", told(), Instant(3000))
    assert [path.parent for path in tmp_path.rglob("*.json")] == [folder, folder]

    again = PipelineRuns(folder)
    assert [run["id"] for run in await again.newest_first()] == ["second", "a/../b"]
    found = await again.find("a/../b")
    assert found is not None
    assert (found["startedAt"], found["updatedAt"], found["state"]) == (1000, 3000, "finished")
    assert (await again.find("second") or {})["summary"] == {"sections": [1]}
    assert await again.find("third") is None


async def test_old_runs_and_their_files_go(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline_runs, "RUNS_MAX", 2)
    runs = PipelineRuns(tmp_path)
    for number in range(4):
        await runs.put(str(number), told(), Instant(number))
    assert [run["id"] for run in await PipelineRuns(tmp_path).newest_first()] == ["3", "2"]
    assert len(list(tmp_path.iterdir())) == 2


async def test_a_file_that_cannot_be_read_is_left_alone(tmp_path, caplog):
    await PipelineRuns(tmp_path).put("good", told(), Instant(1))
    for name, content in {"a": "{", "b": "[]", "c": json.dumps({"id": 1, "startedAt": "soon"})}.items():
        (tmp_path / f"{name}.json").write_text(content)
    assert [run["id"] for run in await PipelineRuns(tmp_path).newest_first()] == ["good"]
    assert caplog.text.count("cannot be read") == 3
    assert len(list(tmp_path.iterdir())) == 4


async def test_a_folder_that_cannot_be_written_to_is_reported_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    runs = PipelineRuns(tmp_path / "file" / "runs")
    with caplog.at_level(logging.WARNING):
        await runs.put("1", told(), Instant(1))
        await runs.put("2", told(), Instant(2))
    assert [run["id"] for run in await runs.newest_first()] == ["2", "1"]
    assert caplog.text.count("cannot be kept") == 1


async def test_without_a_folder_runs_are_in_memory():
    runs = PipelineRuns(None)
    await runs.put("1", told(), Instant(1))
    assert [run["id"] for run in await runs.newest_first()] == ["1"]
