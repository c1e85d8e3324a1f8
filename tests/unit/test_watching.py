"""Alert rules and the dashboard of deploy/: they name only metrics that exist, and tools accept them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bendybus.server.metric_families import FAMILIES

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((PROMETHEUS / "bendybus.rules.yml").read_text())["groups"]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "bendybus.json").read_text())

SAMPLES = {
    f"{family.name}{ending}"
    for family in FAMILIES
    for ending in (("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",))
}
ALERTS = {rule["alert"]: rule for group in RULES for rule in group["rules"]}


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:bendybus|process)_[a-z_]+", expression))


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_watches_metrics_that_exist_and_is_in_the_guide(alert: str) -> None:
    rule = ALERTS[alert]
    assert metrics_in(rule["expr"]) <= SAMPLES
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    assert f"| `{alert}` |" in (ROOT / "docs" / "guides" / "watching.md").read_text()


def expressions() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def test_the_dashboard_shows_metrics_that_exist() -> None:
    found = set().union(*(metrics_in(expression) for _, expression in expressions()))
    assert found <= SAMPLES
    # What happens to messages is all there.
    counters = {
        family.name for family in FAMILIES if family.name.endswith(("_messages_total", "_sends_total"))
    }
    assert counters <= found


def test_the_panels_of_the_dashboard_lie_beside_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) is panel["title"]


def test_promtool_accepts_the_rules_and_they_fire_when_they_should() -> None:
    """`make style` gets promtool from Debian's package; without it there is nothing to ask."""
    own = ROOT / ".cache" / "promtool"
    promtool = str(own) if own.exists() else shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: `make style` gets it")
    for arguments in (
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "bendybus.rules.test.yml"),
    ):
        done = subprocess.run(
            [promtool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
