"""Report: the numbers are those of the messages, and the page stands alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bendybus.cli.pipelines import report_rows
from bendybus.client import BusClient, encode
from bendybus.errors import ArgumentError, EntityNotFound
from pyspark_servicebus.pipelines import Bus, Capture, Report
from spark.pipelines.conftest import MakeQueue, SendKeyed, finish

# Spark's share alone is seconds; a machine with other work makes it minutes.
pytestmark = pytest.mark.timeout(400)


class Checked(HTMLParser):
    """Fails on what would leave the page, or run in it beside its own script."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert tag not in ("link", "img", "iframe", "base", "form")
        assert not {name for name, _ in attributes} & {"src", "href", "onload", "onclick"}

    def handle_data(self, data: str) -> None:
        self.texts.append((self.tags[-1] if self.tags else "", data))

    def all(self, tag: str) -> list[str]:
        return [text for each, text in self.texts if each == tag and text.strip()]


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
    # Rates, partitions and dead letters, once each; what waits and what was captured are series of one chart.
    assert checked.tags.count("svg") == 3
    assert checked.tags.count("script") == 1
    headings = checked.all("h2") + checked.all("h3")
    assert len(headings) == len(set(headings)) and headings[0] == queue
    assert {"waiting", "captured", "mean", "dead letters"} <= {told for _, told in checked.texts}
    # Every axis says what it measures, and every column has the one unit that its heading names.
    assert {"messages per second", "time, UTC", "partition", "messages", "reason"} <= set(checked.all("text"))
    units = [
        name.rpartition(", ")[2] for name in checked.all("th") if name.startswith(("Age", "Latency", "Body"))
    ]
    assert len(units) == 4 and set(units) <= {"s", "minutes", "hours", "days", "bytes", "KB", "MB"}
    assert not [cell for cell in checked.all("td") if re.fullmatch(r"[0-9.,]+ ?(s|ms|B|KB|MB|%)", cell)]
    assert "&lt;script&gt;" in text and "it was bad" in text
    assert not re.search(r"https?://", text)
    assert report_rows(finish(report, spark))[0][:4] == (queue, 41, 42, 1)


def test_what_is_wrong_with_a_report_is_named(bus: Bus, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with pytest.raises(ArgumentError, match="needs an entity"):
        Report(bus=bus, output=page).check()
    with pytest.raises(EntityNotFound, match="nowhere"):
        Report(bus=bus, output=page, entities=("nowhere",)).check()
    with pytest.raises(ArgumentError, match="no folder"):
        Report(bus=bus, output=tmp_path / "none" / "report.html", captured="x").check()
    with pytest.raises(ArgumentError, match="no folder 'x'"):
        Report(bus=bus, output=page, captured="x").check()
