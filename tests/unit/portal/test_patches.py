"""What has changed between two versions of a piece of markup."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from bendybus_portal.markup import Html, icon, join, tag
from bendybus_portal.patches import changes_between, pieces_of
from fix_examples import examples


def changes(before: Html, after: Html):
    return changes_between(pieces_of(before), pieces_of(after))


def test_the_same_markup_has_no_changes():
    shown = tag("p", tag("b", "1"), " of 2")
    assert changes(shown, shown) == []


def test_a_text_is_named_by_its_place_in_the_document_and_is_not_escaped():
    before, after = (tag("p", icon("hub"), tag("b", text), " messages") for text in ("1", "2 < 3 & “x”"))
    # p, i, "hub", b, "1", " messages"
    assert changes(before, after) == [(4, "2 < 3 & “x”")]


def test_attributes_that_came_changed_and_went():
    before = tag("div", tag("span", style="width:1%", title="old"))
    after = tag("div", tag("span", style="width:2%", hidden=True))
    assert changes(before, after) == [(1, {"style": "width:2%", "title": None, "hidden": ""})]


def test_a_line_that_grows_is_sent_as_what_is_new():
    line = " ".join(f"{at},{-at}" for at in range(50))
    assert changes(tag("polyline", points=line), tag("polyline", points=f"{line} 50,-50")) == [
        (0, {"points": [" 50,-50"]})
    ]
    # A line whose beginning was forgotten is sent again.
    assert changes(tag("polyline", points=line), tag("polyline", points=line[40:])) == [
        (0, {"points": line[40:]})
    ]


def test_elements_or_texts_that_came_or_went_are_no_changes_of_nodes():
    assert changes(tag("p", "1"), tag("p", "1", tag("b", "2"))) is None
    assert changes(tag("p", "1"), tag("p", "")) is None
    assert changes(tag("p", ""), tag("p", "1")) is None
    assert changes(tag("p", "1"), tag("b", "1")) is None


def test_a_box_of_another_message_is_drawn_again_because_a_person_may_have_ticked_it():
    before, after = (tag("input", type="checkbox", data_subject=number) for number in (1, 2))
    assert changes(before, after) is None
    assert changes(join(before, tag("p", "1")), join(before, tag("p", "2"))) == [(2, "2")]


class _Nodes(HTMLParser):
    """The nodes of a document in their order, as a browser makes them."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.nodes: list[object] = []
        self.feed(markup)
        self.close()

    def handle_starttag(self, name, attributes):
        self.nodes.append([name, {key: value or "" for key, value in attributes}])

    def handle_data(self, text):
        self.nodes.append(text)


texts = st.text("<>&\"' =aé/", min_size=1, max_size=6)
titles = texts | st.none()


def grown(children, title, later_title, marked, later_marked):
    befores, afters = ([each[at] for each in children] for at in (0, 1))
    return (
        tag("p", *befores, title=title, hidden=marked),
        tag("p", *afters, title=later_title, hidden=later_marked),
    )


# The same elements twice, with other texts and attributes.
pairs = st.recursive(
    st.tuples(texts, texts).map(lambda both: (tag("b", both[0]), tag("b", both[1]))),
    lambda inner: st.builds(grown, st.lists(inner, max_size=3), titles, titles, st.booleans(), st.booleans()),
    max_leaves=6,
)


@settings(max_examples=examples(200))
@given(pairs)
def test_changes_make_the_later_markup_of_the_earlier_one(pair):
    before, after = pair
    found = changes(before, after)
    assert found is not None
    nodes = _Nodes(before).nodes
    for place, change in found:
        if isinstance(change, str):
            nodes[place] = change
            continue
        attributes = nodes[place][1]
        for name, value in change.items():
            if value is None:
                del attributes[name]
            else:
                attributes[name] = attributes[name] + value[0] if isinstance(value, list) else value
    assert nodes == _Nodes(after).nodes
