"""Rights: what implies what, and their names."""

from __future__ import annotations

import pytest

from bendybus.auth.rights import Right


@pytest.mark.parametrize("needed", [Right.SEND, Right.LISTEN, Right.MANAGE, Right.SEND | Right.LISTEN])
def test_manage_allows_everything(needed: Right) -> None:
    assert Right.MANAGE.allows(needed)


@pytest.mark.parametrize(
    ("held", "needed"),
    [
        (Right.SEND, Right.LISTEN),
        (Right.LISTEN, Right.SEND),
        (Right.SEND | Right.LISTEN, Right.MANAGE),
        (Right.SEND, Right.SEND | Right.LISTEN),
        (Right(0), Right.SEND),
    ],
)
def test_no_other_right_implies_another(held: Right, needed: Right) -> None:
    assert not held.allows(needed)


def test_rights_are_found_by_name_in_any_case() -> None:
    assert Right.named("Send") is Right.SEND
    assert Right.named("LISTEN") is Right.LISTEN
    assert Right.named("Everything") is None


def test_labels_are_spelt_as_service_bus_spells_them() -> None:
    assert (Right.SEND | Right.LISTEN).label == "Send, Listen"
