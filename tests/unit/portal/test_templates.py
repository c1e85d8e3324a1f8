"""A person's own templates, as the browser keeps them."""

from __future__ import annotations

import pytest

from bendybus.errors import ArgumentError
from bendybus_portal.templates import (
    TEMPLATE_LENGTH_MAX,
    TEMPLATES_MAX,
    Template,
    read_templates,
    with_template,
    written_templates,
)


def test_templates_are_found_again():
    own = with_template({}, "order", Template("{}", False, {"subject": "order"}, "a:=1", "30s"))
    own = with_template(own, "bytes", Template("AAE=", True))
    assert read_templates(written_templates(own)) == own
    assert with_template(own, "order", Template("new"))["order"].body == "new"


@pytest.mark.parametrize("kept", [None, "", "{", "[]", 12, '{"a": 1}', '{"a": {"texts": []}}'])
def test_what_is_no_template_is_left_out(kept):
    assert read_templates(kept) == {}


def test_there_are_limits():
    many = {str(number): Template() for number in range(TEMPLATES_MAX)}
    wrong = [
        ({}, "", Template()),
        ({}, "x" * 61, Template()),
        ({}, "JSON", Template()),
        ({}, "large", Template("x" * TEMPLATE_LENGTH_MAX)),
        (many, "one more", Template()),
    ]
    for own, name, template in wrong:
        with pytest.raises(ArgumentError):
            with_template(own, name, template)
