"""JSON bodies: types are checked, and members that nobody knows are refused."""

from __future__ import annotations

import pytest

from bendybus.arm.members import json_object, member, refuse_unknown
from bendybus.errors import ArgumentError


@pytest.mark.parametrize("body", [b"[]", b"1", b"{", b"\xff", b"[" * 100_000])
def test_a_body_is_an_object(body):
    with pytest.raises(ArgumentError):
        json_object(body)


def test_an_empty_body_says_nothing():
    assert json_object(b" ") == {}


def test_a_member_is_found_in_any_case_and_null_is_nothing():
    assert member({"LockDuration": "PT1M"}, "lockDuration", str) == "PT1M"
    assert member({"lockDuration": None}, "lockDuration", str) is None
    assert member({}, "lockDuration", str) is None


@pytest.mark.parametrize(
    ("value", "kind"), [(True, int), (1, bool), ("1", int), (1.5, int), ([], dict), ({}, list), (1, str)]
)
def test_a_member_of_another_type_is_refused(value, kind):
    with pytest.raises(ArgumentError, match="'size' must be"):
        member({"size": value}, "size", kind)


def test_an_unknown_member_is_refused_unless_it_is_null():
    refuse_unknown("The body", {"Known": 1, "other": None}, ["known"])
    with pytest.raises(ArgumentError, match="The body has the unknown member 'other'"):
        refuse_unknown("The body", {"other": False}, ["known"])


@pytest.mark.parametrize("body", [rb'{"tags": {"a": "\ud800"}}', rb'{"\udc00": 1}'])
def test_a_text_that_no_answer_can_have_is_refused(body):
    with pytest.raises(ArgumentError, match="half of a surrogate pair"):
        json_object(body)
