"""Sessions: sealed, ended by time, by signing out and by a new root key."""

from __future__ import annotations

from bendybus.auth.connection_strings import ConnectionString
from bendybus.auth.sas import make_token
from bendybus_portal.access import Rights
from bendybus_portal.sessions import COOKIE_MAX, SESSION_LIFE_S, Sessions

ROOT = "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=Root;SharedAccessKey={};UseDevelopmentEmulator=true"
LISTENS = Rights(
    manage=False, send=False, listen=True, extensions=True, development=False, name="shop", tier="standard"
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def sessions(key: str = "k1", clock: Clock | None = None) -> Sessions:
    return Sessions(ConnectionString.parse(ROOT.format(key)), clock=clock or Clock())


def test_a_cookie_hides_the_key_and_finds_its_session():
    made = sessions()
    session, cookie = made.begin(made.access("Listens", "secret-key", "orders"), LISTENS)
    assert "secret-key" not in cookie and "secret-key" not in repr(session)
    assert made.find(cookie) is session
    assert (session.key_name, session.entity, session.rights.label) == ("Listens", "orders", "Listen")
    assert session.access.namespace.netloc == "127.0.0.1:5672"
    assert made.find(None) is made.find("nonsense") is made.find("x" * 5000) is None


def test_a_session_ends_in_time():
    clock = Clock()
    made = sessions(clock=clock)
    session, cookie = made.begin(made.access("Listens", "k"), LISTENS)
    clock.now += SESSION_LIFE_S - 1
    assert made.find(cookie) is session
    clock.now += 1
    assert made.find(cookie) is None
    assert made.reopened(cookie) is None
    assert not session.alive


def test_signing_out_ends_a_session_though_the_cookie_is_still_sealed():
    made = sessions()
    session, cookie = made.begin(made.access("Listens", "k"), LISTENS)
    made.end(session)
    assert made.find(cookie) is None
    assert made.reopened(cookie) is None


def test_a_session_gives_back_what_its_pages_hold():
    class Held:
        released = False

        def release(self) -> None:
            self.released = True

    made = sessions()
    session, _ = made.begin(made.access("Listens", "k"), LISTENS)
    session.memory |= {"held": (held := Held()), "history": object()}
    session.release()
    assert held.released


def test_another_process_reopens_a_session_and_another_root_key_does_not():
    _, cookie = (first := sessions()).begin(first.access("Listens", "k", "orders"), LISTENS)
    again = sessions()
    assert again.find(cookie) is None
    reopened = again.reopened(cookie)
    assert reopened is not None
    access, number, ends_at = reopened
    assert (access.namespace.key, access.namespace.entity) == ("k", "orders")
    session = again.resume(number, access, LISTENS, ends_at)
    assert again.find(cookie) is session
    assert again.resume(number, access, LISTENS, ends_at) is session
    assert sessions("k2").reopened(cookie) is None


def test_a_session_with_a_token_ends_with_the_token_and_survives_a_restart():
    clock = Clock()
    made = sessions(clock=clock)
    token = make_token("sb://127.0.0.1/", "reader", "some-key", 1600)
    session, cookie = made.begin(made.access("", "", None, token), LISTENS)
    assert token not in cookie and token not in repr(session)
    assert (session.key_name, session.ends_at) == ("reader", 1600.0)
    found = sessions(clock=clock).reopened(cookie)
    assert found is not None
    assert (found[0].namespace.signature, found[2]) == (token, 1600.0)
    clock.now = 1600.0
    assert made.find(cookie) is None and sessions(clock=clock).reopened(cookie) is None


def test_a_token_that_is_too_long_for_a_cookie_is_in_memory_only():
    made = sessions()
    session, cookie = made.begin(made.access("", "", None, "eyJ." + "x" * 4000), LISTENS)
    assert len(cookie) < COOKIE_MAX
    assert made.find(cookie) is session
    assert sessions().find(cookie) is None and sessions().reopened(cookie) is None
