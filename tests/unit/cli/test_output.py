"""What is printed: whole, quotable, and harmless to a terminal."""

from __future__ import annotations

import json

import pytest

from bendybus.cli.output import OutputFormat, json_line, printable, show_many, show_one, tell_error

HOSTILE = "\x1b]0;owned\x07\u202e\x9b2J"


def test_what_a_terminal_would_act_upon_is_shown_as_an_escape() -> None:
    assert printable("blåbær 🫐") == "blåbær 🫐"
    assert printable("a\nb\x1b[2J") == "a\\nb\\x1b[2J"


@pytest.mark.parametrize("output", list(OutputFormat))
def test_no_value_reaches_the_terminal_raw(capsys: pytest.CaptureFixture[str], output: OutputFormat) -> None:
    show_one({"name": HOSTILE}, output)
    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\x07\u202e\x9b")
    if output is OutputFormat.JSON:
        assert json.loads(shown) == {"name": HOSTILE}


def test_an_error_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    tell_error("bad\nname")
    assert capsys.readouterr() == ("", "bendybus: bad\\nname\n")


def test_a_table_is_not_folded_where_nobody_looks_and_knows_no_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_many(("Name", "On"), [("[red]" + "x" * 300, True), ("b", None)], None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["Name", "On"]
    assert lines[2].split() == ["[red]" + "x" * 300, "yes"]
    assert lines[3].split() == ["b"]


def test_nested_values_stand_in_a_table_under_their_path(capsys: pytest.CaptureFixture[str]) -> None:
    show_one({"counts": {"active": 3}}, OutputFormat.TABLE)
    assert capsys.readouterr().out.splitlines()[-1].split() == ["counts.active", "3"]


def test_a_json_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    json_line({"body": "a\nb"})
    assert capsys.readouterr().out == '{"body": "a\\nb"}\n'
