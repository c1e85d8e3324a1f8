"""Report: the numbers are those of the messages, and the page stands alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bendybus.client import BusClient, encode
from bendybus.errors import ArgumentError, EntityNotFound
from pyspark_servicebus.pipelines import Bus, Capture, Report
from spark.pipelines.conftest import MakeQueue, SendKeyed, finish

# Spark's share alone is seconds; a machine with other work makes it minutes.
pytestmark = pytest.mark.timeout(400)


class Checked(HTMLParser):
    """Fails on what would leave the page, or run in it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert tag not in ("script", "link", "img", "iframe")
        assert not {name for name, _ in attributes} & {"src", "href", "onload", "onclick"}


@pytest.mark.row("S-05")
def test_a_report_tells_of_rates_skew_keys_latency_and_reasons_in_one_page(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    tmp_path: Path,
) -> None:
    queue = make_queue()
    send_keyed(queue, 12)
    hot = [encode(b"x" * 100, partition_key="<script>alert(1)</script>") for _ in range(30)]
    client.sender(queue).send(hot, "hot")
    finish(Capture(bus=bus, entity=queue, path=str(tmp_path / "captured")), spark)
    receiver = client.receiver(queue)
    receiver.dead_letter(receiver.receive(1), "Bad <b>", "it was bad")
    receiver.close()
    page = tmp_path / "report.html"
    report = Report(bus=bus, output=page, entities=(queue,), captured=str(tmp_path / "captured"), top=3)
    summary = finish(report, spark).details
    waiting, captured = summary["sections"]
    assert (waiting["messages"], captured["messages"]) == (41, 42)
    assert sum(part["messages"] for part in captured["partitions"]) == 42
    assert len(waiting["partitions"]) == 16
    assert captured["topKeys"][0]["messages"] == 30
    assert waiting["skew"] > 5
    assert captured["sizeBytes"]["max"] == 100
    assert 0 <= captured["latency"]["p50"] <= captured["latency"]["max"]
    assert round(sum(each["perSecond"] for each in captured["rates"])) * 1 >= 1
    assert [(group["reason"], group["messages"]) for group in summary["deadLetters"][queue]] == [
        ("Bad <b>", 1)
    ]
    text = page.read_text()
    checked = Checked()
    checked.feed(text)
    assert checked.tags.count("svg") == 5
    assert "&lt;script&gt;" in text and "it was bad" in text
    assert not re.search(r"https?://", text)


def test_what_is_wrong_with_a_report_is_named(bus: Bus, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with pytest.raises(ArgumentError, match="needs an entity"):
        Report(bus=bus, output=page).check()
    with pytest.raises(EntityNotFound, match="nowhere"):
        Report(bus=bus, output=page, entities=("nowhere",)).check()
    with pytest.raises(ArgumentError, match="no folder"):
        Report(bus=bus, output=tmp_path / "none" / "report.html", captured="x").check()
