"""What can be taken back is offered for some seconds."""

from __future__ import annotations

from bendybus_portal.undo import OFFERED_MAX, OFFERED_S, Undos


def test_an_offer_is_taken_once_and_ends_by_itself():
    at = [100.0]
    undos, done = Undos(lambda: at[0]), []
    undos.offer("saved", lambda: done.append("saved"))
    at[0] += OFFERED_S / 2
    undos.offer("deleted", lambda: done.append("deleted"))
    assert [each.text for each in undos.offered()] == ["deleted", "saved"]
    assert undos.left_s(undos.offered()[1]) == OFFERED_S / 2
    deleted = undos.offered()[0]
    assert undos.take(deleted.number) is deleted
    assert undos.take(deleted.number) is None
    at[0] += OFFERED_S / 2
    assert undos.offered() == []
    assert done == []


def test_only_the_newest_offers_are_shown():
    undos = Undos()
    for number in range(OFFERED_MAX + 2):
        undos.offer(str(number), lambda: None)
    assert [each.text for each in undos.offered()] == ["4", "3", "2"]
