"""The filters of a source: which are in place, and that the answer can always be written."""

from __future__ import annotations

import pytest

from bendybus.amqp.performatives import RECEIVER, Attach, Source
from bendybus.amqp.types import Described, Symbol
from bendybus.domain.session_commands import SessionLock
from bendybus.engine.events import LinkAttached
from bendybus.engine.sending import SendingLink
from bendybus.gateway.session_filters import HANDOVER_FILTER, answer_source
from bendybus.gateway.source_filters import SELECTOR, SourceFilters
from bendybus.names import LockToken, SessionId, SessionKey
from fix_engine import RawPeer

SELECTION = Described(Symbol(SELECTOR), "a = 1")


def asked(peer: RawPeer, filters: dict[str, object]) -> SendingLink:
    peer.begin()
    source = Source(address="q", filter=filters)
    (attached,) = peer.send(0, Attach(name="l", handle=0, role=RECEIVER, source=source))
    assert isinstance(attached, LinkAttached) and isinstance(attached.link, SendingLink)
    return attached.link


def answered(peer: RawPeer) -> object:
    (answer,) = peer.answers()
    assert isinstance(answer, Attach) and isinstance(answer.source, Source)
    return answer.source.filter


@pytest.mark.parametrize("key", ["selector", "wähler"])
def test_a_selector_is_answered_under_the_key_of_the_client(key: str) -> None:
    """Clients choose the key, and some write it as a string."""
    peer = RawPeer().open()
    link = asked(peer, {key: SELECTION, "other": Described(Symbol("unknown"), "x")})
    link.accept(source=SourceFilters.of(link).answer(link))
    assert answered(peer) == {key: SELECTION}


def test_a_session_that_can_be_handed_over_is_answered_under_the_key_of_the_client() -> None:
    peer = RawPeer().open()
    link = asked(peer, {"sitzungsübergabe": Described(Symbol(HANDOVER_FILTER), [None, None])})
    lock = SessionLock(SessionId("s"), LockToken(bytes(16)), SessionKey("s"), None)
    link.accept(source=answer_source(link.source, lock))
    assert answered(peer) == {"sitzungsübergabe": Described(Symbol(HANDOVER_FILTER), "s")}
