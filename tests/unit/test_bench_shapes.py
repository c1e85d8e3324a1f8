"""The pure parts of the benchmark of shapes: its rows, its options for the load generator, its table."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

# The modules there import each other by name.
sys.path.append(str(Path(__file__).parents[1] / "bench"))
from shape import PLAIN, Shape
from shape_entities import ENTITIES
from shape_results import BEGIN, END, LABELS, Comparison, Outcome, Run, between_markers, markdown
from shape_rows import ROWS, Cannot, Row, UnknownRow, Way, choose

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / "tests" / "bench" / "generator" / "main.c"
NAMES = [row.name for row in ROWS]
PLAIN_ROW, KEY_ROW = Row("plain", "plain", against=""), Row("key", "with a key")


def outcome(row: str, broker: str, *rates: float, **more: object) -> Outcome:
    runs = [Run(rate, rate, cpu_seconds=2.0) for rate in rates]
    return Outcome(row, broker, count=50_000, runs=runs, **more)


def test_no_two_rows_have_one_name():
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_a_row_names_only_what_exists(row):
    assert row.entity in ENTITIES
    assert row.onward in ("", *ENTITIES)
    assert row.against in ("", *NAMES)
    assert set(row.peers) <= set(LABELS) - {"bendybus"}


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_a_row_has_whole_batches_only(row):
    for count in (row.count, row.quick_count, 1):
        assert row.whole_batches(count) % (row.shape.batch or 1) == 0


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_a_peer_that_does_something_else_says_what(row):
    for peer in row.peers.values():
        assert peer.reason if isinstance(peer, Cannot) else peer.note


def test_a_peer_does_the_same_unless_the_row_says_otherwise():
    row = Row("a", "a", shape=Shape(keys=5), peers={"artemis": Way(note="without keys")})
    assert row.way("rabbitmq") == Way(Shape(keys=5))
    assert row.way("artemis") == Way(PLAIN, "without keys")


def test_rows_are_chosen_by_name_and_keep_their_order():
    assert [row.name for row in choose(["tls", "plain"])] == ["plain", "tls"]
    assert choose([]) == list(ROWS)


def test_an_unknown_row_is_refused_by_name():
    with pytest.raises(UnknownRow, match="no row colour; there are plain,"):
        choose(["plain", "colour"])


def test_the_generator_knows_every_option_of_a_shape():
    known = set(re.findall(r'\{"([a-z-]+)", [01], 0', GENERATOR.read_text()))
    everything = Shape(1, 1, True, True, 1, 1, "id", True, True, 1, 1, 1, ("a",), "b", 1, True, True)
    given = {argument[2:] for argument in everything.arguments() if argument.startswith("--")}
    assert given <= known
    assert len(given) == len(Shape.__slots__)


def test_options_without_effect_are_not_given():
    assert Shape(keys=3).arguments() == [
        "--keys",
        "3",
        "--properties",
        "2",
        "--connections",
        "1",
        "--links",
        "1",
    ]


def test_ratios_are_of_medians():
    compared = Comparison(
        [PLAIN_ROW, KEY_ROW],
        [
            outcome("plain", "bendybus", 90, 100, 900),
            outcome("plain", "rabbitmq", 50),
            outcome("key", "bendybus", 80),
            outcome("key", "rabbitmq", 40),
        ],
    )
    assert compared.ratios() == {
        "plain, bendybus / rabbitmq": 2.0,
        "key, bendybus / rabbitmq": 2.0,
        "key / plain, bendybus": 0.8,
        "key / plain, rabbitmq": 0.8,
    }


def test_cpu_seconds_are_given_for_as_many_messages_everywhere():
    assert outcome("plain", "bendybus", 10).cpu_seconds_per_messages == 4.0


def test_the_table_says_what_a_peer_cannot_do_and_what_stands_in():
    compared = Comparison(
        [PLAIN_ROW, KEY_ROW],
        [
            outcome("plain", "bendybus", 2000),
            outcome("plain", "artemis", 1000, said="no partitions"),
            outcome("key", "bendybus", 1000),
            outcome("key", "artemis", said="no keys", cannot=True),
        ],
    )
    assert compared.headings() == [
        *("shape", "Bendybus", "Artemis", "x Artemis", "x plain"),
        *("CPU s, Bendybus", "CPU s, Artemis"),
    ]
    assert compared.lines() == [
        ["plain", "2,000", "1,000 [1]", "2.00", "-", "4.00", "4.00"],
        ["with a key", "1,000", "- [2]", "-", "0.50", "4.00", "-"],
    ]
    assert compared.notes() == ["Artemis: no partitions.", "Artemis: no keys."]


def test_a_row_that_failed_has_no_number():
    failed = outcome("plain", "bendybus", 2000, failures=["a message is missing"])
    compared = Comparison([PLAIN_ROW], [failed, outcome("plain", "rabbitmq", 1000)])
    assert compared.lines()[0][1] == "failed"
    assert compared.ratios() == {}


def test_several_subscriptions_show_what_went_in_and_what_came_out():
    five = Outcome("plain", "bendybus", 100, runs=[Run(1000, 5000, 1.0)])
    assert Comparison([PLAIN_ROW], [five]).lines()[0][1] == "1,000 in, 5,000 out"


def test_the_page_gets_the_table_between_its_markers():
    compared = Comparison([PLAIN_ROW], [outcome("plain", "bendybus", 2000)])
    text = markdown(compared, "A machine.", "shapes.png")
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = between_markers(page, text)
    assert "| plain | 2,000 | - | 4.00 |" in once
    assert "old" not in once
    assert between_markers(once, text) == once
    assert once.startswith("before\n")
    assert once.endswith("after\n")


def test_the_page_of_benchmarks_has_the_markers():
    assert between_markers((ROOT / "docs" / "benchmarks.md").read_text(), "x")
