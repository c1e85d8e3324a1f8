"""Nothing that a server says becomes part of a page."""

from __future__ import annotations

from bendybus_portal.components.charts import line_chart
from bendybus_portal.components.table import Column, table
from bendybus_portal.markup import Html, badge, join, link, page_url, tag
from bendybus_portal.series import Series

SCRIPT = '"><script>alert(1)</script>'


def test_text_and_attributes_are_escaped_and_markup_is_not_escaped_twice():
    inner = tag("b", SCRIPT, title=SCRIPT)
    outer = tag("td", inner, SCRIPT, None, 7)
    assert "<script" not in outer
    assert outer.count("&lt;script&gt;") == 3
    assert outer.startswith("<td><b title=") and outer.endswith("7</td>")
    assert join(Html("<i>"), "<i>") == "<i>&lt;i&gt;"


def test_names_of_attributes_are_those_of_html_and_what_is_off_is_left_out():
    made = tag("input", aria_label="Search", class_="wide", disabled=True, hidden=False, title=None)
    assert made == '<input aria-label="Search" class="wide" disabled>'


def test_addresses_are_quoted():
    assert page_url("entity", path="a/b&c", tab=None) == "/portal/entity?path=a%2Fb%26c"
    assert link("x", "entity", path=SCRIPT).count("<") == 2


def test_a_table_escapes_cells_and_says_how_it_is_sorted():
    columns = [Column("Name", lambda row: row, sort="name"), Column("Count", lambda row: 1, numeric=True)]
    shown = table(SCRIPT, columns, [SCRIPT], sorted_by="name", sort_url=lambda name, down: f"?{name}={down}")
    assert "<script" not in shown
    assert 'aria-sort="ascending"' in shown
    assert 'href="?name=True"' in shown
    assert badge(SCRIPT).count("<") == 2


def test_a_chart_tells_its_figures_to_those_who_cannot_see_it():
    series = Series()
    series.add(0, 1.5)
    series.add(10, 3)
    shown = line_chart("Messages", "/ s", [("Arriving", series)], 10)
    assert "last 30 s: Arriving 3.0 / s" in shown
    assert "polyline" in shown
