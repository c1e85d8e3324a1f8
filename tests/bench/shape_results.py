"""What the shapes gave: outcomes, the ratios between them, and both in Markdown for the page. Pure.

Ratios are of medians of the same run: to each peer in the same row, and to the row that `against` names at
the same broker. How outcomes come about: shape_runs.py; the terminal and the plot: shape_report.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from measures import PER_MESSAGES
from shape_rows import Row

__all__ = ["LABELS", "Comparison", "Outcome", "Run", "as_json", "between_markers", "markdown"]

OURS = "bendybus"
PEERS = ("pure", "rabbitmq", "artemis")
LABELS = {"bendybus": "Bendybus", "pure": "pure Python", "rabbitmq": "RabbitMQ", "artemis": "Artemis"}
NOTHING = "-"

BEGIN, END = "<!-- shapes: written by tests/bench/shapes.py -->", "<!-- end of shapes -->"


@dataclass(slots=True)
class Run:
    """One row once: messages a second, CPU seconds of the broker, milliseconds."""

    rate: float
    delivery_rate: float
    cpu_seconds: float
    latencies_ms: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
    """One row at one broker: every run and what went wrong. `said`: what stood in, or why it cannot.

    With a failure there are no numbers: a median without the run that failed would hide it.
    """

    row: str
    broker: str
    count: int
    said: str = ""
    cannot: bool = False
    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    left_over: int = 0

    @property
    def rate(self) -> float | None:
        return self._median(lambda run: run.rate)

    @property
    def delivery_rate(self) -> float | None:
        return self._median(lambda run: run.delivery_rate)

    @property
    def cpu_seconds_per_messages(self) -> float | None:
        return self._median(lambda run: run.cpu_seconds * PER_MESSAGES / self.count)

    def latency_ms(self, name: str) -> float | None:
        return self._median(lambda run: run.latencies_ms.get(name))

    def _median(self, value: Callable[[Run], float | None]) -> float | None:
        values = [found for run in self.runs if (found := value(run)) is not None]
        return statistics.median(values) if values and not self.failures else None


class Comparison:
    """The outcomes of a run, by row and broker."""

    def __init__(self, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> None:
        self.rows = rows
        self.outcomes = {(one.row, one.broker): one for one in outcomes}
        present = {one.broker for one in outcomes}
        self.brokers = [name for name in (OURS, *PEERS) if name in present]
        self._notes: list[str] = []

    def rate(self, row: str, broker: str) -> float | None:
        found = self.outcomes.get((row, broker))
        return found.rate if found else None

    def to_peer(self, row: Row, peer: str) -> float | None:
        """Our rate to theirs in the same row."""
        return _ratio(self.rate(row.name, OURS), self.rate(row.name, peer))

    def to_row(self, row: Row, broker: str = OURS) -> float | None:
        """The rate to that of the row which this one is compared with, at the same broker."""
        return _ratio(self.rate(row.name, broker), self.rate(row.against, broker))

    def ratios(self) -> dict[str, float]:
        """All of them under `row / row` and `row, ours / theirs`."""
        found: dict[str, float | None] = {}
        for row in self.rows:
            found |= {f"{row.name}, {OURS} / {peer}": self.to_peer(row, peer) for peer in PEERS}
            if row.against:
                found |= {
                    f"{row.name} / {row.against}, {name}": self.to_row(row, name) for name in self.brokers
                }
        return {name: round(value, 3) for name, value in found.items() if value is not None}

    def lines(self) -> list[list[str]]:
        """The cells of the table, row by row; `headings` names the columns."""
        return [self._line(row) for row in self.rows]

    def headings(self) -> list[str]:
        peers = [name for name in PEERS if name in self.brokers]
        rates = [LABELS[name] for name in self.brokers]
        ratios = [f"x {LABELS[name]}" for name in peers]
        costs = [f"CPU s, {LABELS[name]}" for name in self.brokers]
        return ["shape", *rates, *ratios, "x plain", *costs]

    def notes(self) -> list[str]:
        """What the numbers in brackets mean."""
        self.lines()
        return self._notes

    def _line(self, row: Row) -> list[str]:
        peers = [name for name in PEERS if name in self.brokers]
        return [
            row.title,
            *(self._rate_cell(row, name) for name in self.brokers),
            *(_number(self.to_peer(row, name), "{:.2f}") for name in peers),
            _number(self.to_row(row), "{:.2f}") if row.against else NOTHING,
            *(self._cost_cell(row, name) for name in self.brokers),
        ]

    def _rate_cell(self, row: Row, broker: str) -> str:
        """Messages a second; with several subscriptions what came out as well; a note where one is due."""
        one = self.outcomes[row.name, broker]
        note = f" [{self._note(broker, one.said)}]" if one.said else ""
        if one.cannot:
            return f"{NOTHING}{note}"
        if one.rate is None:
            return "failed"
        several = one.delivery_rate is not None and one.delivery_rate > 1.01 * one.rate
        out = f" in, {one.delivery_rate:,.0f} out" if several else ""
        return f"{one.rate:,.0f}{out}{note}"

    def _cost_cell(self, row: Row, broker: str) -> str:
        return _number(self.outcomes[row.name, broker].cpu_seconds_per_messages, "{:.2f}")

    def _note(self, broker: str, said: str) -> int:
        text = f"{LABELS[broker]}: {said}."
        if text not in self._notes:
            self._notes.append(text)
        return self._notes.index(text) + 1

    def latency_lines(self) -> list[list[str]]:
        """Median and the slowest of a hundred, in milliseconds, of the rows whose point they are."""
        wanted = (
            ("latency", "ack", "one in flight: a send until it is acknowledged"),
            ("latency", "end_to_end", "one in flight: from the send to the receipt"),
            ("transactions", "transaction", "64 transactions at once: each"),
        )
        names = {row.name for row in self.rows}
        return [
            [title, *(self._latency_cell(row, broker, name) for broker in self.brokers)]
            for row, name, title in wanted
            if row in names
        ]

    def _latency_cell(self, row: str, broker: str, name: str) -> str:
        one = self.outcomes[row, broker]
        p50, p99 = one.latency_ms(f"{name}_p50_ms"), one.latency_ms(f"{name}_p99_ms")
        return NOTHING if p50 is None or p99 is None else f"{p50:.2f} / {p99:.2f}"


def markdown(comparison: Comparison, machine: str, plot: str) -> str:
    """The tables, their notes and the plot, as docs/benchmarks.md shows them."""
    parts = [
        f"{machine}\nMessages per second, medians; CPU s: seconds of the broker's processor time per "
        f"{PER_MESSAGES:,} messages:",
        _markdown_table(comparison.headings(), comparison.lines()),
    ]
    if notes := comparison.notes():
        parts.append("\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1)))
    if latencies := comparison.latency_lines():
        heading = ["ms, p50 / p99", *(LABELS[name] for name in comparison.brokers)]
        parts.append(_markdown_table(heading, latencies))
    return "\n\n".join([*parts, f"![shapes]({plot})"]) + "\n"


def between_markers(page: str, text: str) -> str:
    """The page with the text in place of what its markers enclose."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}"


def _markdown_table(headings: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *("---:" for _ in headings[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [headings, rule, *lines])


def as_json(outcome: Outcome) -> dict[str, object]:
    medians = {"rate": outcome.rate, f"cpu_s_per_{PER_MESSAGES}": outcome.cpu_seconds_per_messages}
    return {**asdict(outcome), "median": medians}


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else form.format(value)
