"""The verb and the end of the path say which operation a request is."""

from __future__ import annotations

import pytest

from bendybus.auth.rights import Right
from bendybus.domain.messages import SubQueue
from bendybus.rest.calls import Operation, RestCall


@pytest.mark.parametrize(
    ("method", "path", "operation", "entity", "subqueue"),
    [
        ("POST", "/orders/messages", Operation.SEND, "orders", SubQueue.MAIN),
        ("POST", "/a/b/Messages/", Operation.SEND, "a/b", SubQueue.MAIN),
        ("POST", "/orders/Messages/Head", Operation.PEEK_LOCK, "orders", SubQueue.MAIN),
        ("DELETE", "/orders/messages/head", Operation.RECEIVE_AND_DELETE, "orders", SubQueue.MAIN),
        ("POST", "/q/$DeadLetterQueue/messages/head", Operation.PEEK_LOCK, "q", SubQueue.DEAD_LETTER),
        ("POST", "/q/%24deadletterqueue/messages/head", Operation.PEEK_LOCK, "q", SubQueue.DEAD_LETTER),
        (
            *("POST", "/q/$Transfer/$DeadLetterQueue/messages/head"),
            *(Operation.PEEK_LOCK, "q", SubQueue.TRANSFER_DEAD_LETTER),
        ),
        ("POST", "/messages/messages", Operation.SEND, "messages", SubQueue.MAIN),
        ("POST", "/q/messages/messages/head", Operation.PEEK_LOCK, "q/messages", SubQueue.MAIN),
        ("POST", "/t/subscriptions/s/messages/head", Operation.PEEK_LOCK, "t/subscriptions/s", SubQueue.MAIN),
    ],
)
def test_an_operation_is_found_by_verb_and_path(method, path, operation, entity, subqueue):
    call = RestCall.parse(method, path)
    assert call is not None
    assert (call.operation, call.entity, call.subqueue) == (operation, entity, subqueue)


@pytest.mark.parametrize(
    ("method", "path", "operation", "message"),
    [
        ("POST", "/q/messages/m/TOKEN/Defer", Operation.DEFER, "m"),
        ("POST", "/q/messages/m/TOKEN/deadletter", Operation.DEAD_LETTER, "m"),
        ("POST", "/q/messages/deferred/12", Operation.LOCK_DEFERRED, "12"),
        ("DELETE", "/q/Messages/Deferred/12", Operation.TAKE_DEFERRED, "12"),
        # A message may have that id.
        ("POST", "/q/messages/deferred/TOKEN", Operation.RENEW, "deferred"),
    ],
)
def test_what_azure_does_not_have_is_found_too(method, path, operation, message):
    call = RestCall.parse(method, path)
    assert call is not None
    assert (call.operation, call.entity, call.message) == (operation, "q", message)
    assert call.lock_token in ("TOKEN", "")


GUID = "7f2c1b8e-6b1c-4b52-9a3f-0d6a1f1f4a11"


@pytest.mark.parametrize(
    ("method", "path", "operation", "session"),
    [
        ("POST", "/q/sessions", Operation.ACCEPT_SESSION, ("", "")),
        ("POST", "/q/Sessions/a%2Fb", Operation.ACCEPT_SESSION, ("a/b", "")),
        ("POST", f"/q/sessions/s/{GUID}", Operation.RENEW_SESSION, ("s", GUID)),
        ("DELETE", f"/q/sessions/s/{GUID}", Operation.RELEASE_SESSION, ("s", GUID)),
        ("GET", f"/q/sessions/s/{GUID}/state", Operation.GET_STATE, ("s", GUID)),
        ("PUT", f"/q/sessions/s/{GUID}/State", Operation.SET_STATE, ("s", GUID)),
        ("DELETE", f"/q/sessions/s/{GUID}/state", Operation.CLEAR_STATE, ("s", GUID)),
        ("POST", f"/q/sessions/s/{GUID}/messages/head", Operation.PEEK_LOCK, ("s", GUID)),
        ("DELETE", f"/q/sessions/s/{GUID}/messages/head", Operation.RECEIVE_AND_DELETE, ("s", GUID)),
        ("POST", f"/q/sessions/s/{GUID}/messages/deferred/1", Operation.LOCK_DEFERRED, ("s", GUID)),
        ("DELETE", f"/q/sessions/s/{GUID}/messages/m/TOKEN", Operation.COMPLETE, ("s", GUID)),
        ("POST", f"/q/sessions/s/{GUID}/messages/m/TOKEN/defer", Operation.DEFER, ("s", GUID)),
    ],
)
def test_a_session_is_named_by_its_id_and_its_lock(method, path, operation, session):
    call = RestCall.parse(method, path)
    assert call is not None
    assert (call.operation, call.entity) == (operation, "q")
    assert (call.session_id, call.session_lock) == session


def test_what_only_looks_like_a_session_is_a_part_of_the_entity():
    send = RestCall.parse("POST", f"/q/sessions/s/{GUID}/messages")
    assert send is not None and send.entity == f"q/sessions/s/{GUID}"
    head = RestCall.parse("POST", "/q/sessions/s/no-lock/messages/head")
    assert head is not None and (head.entity, head.session_lock) == ("q/sessions/s/no-lock", "")
    assert RestCall.parse("DELETE", "/q/sessions/s") is None
    assert RestCall.parse("POST", "/sessions") is None


@pytest.mark.parametrize(
    ("method", "operation"),
    [("POST", Operation.RENEW), ("PUT", Operation.UNLOCK), ("DELETE", Operation.COMPLETE)],
)
def test_a_locked_message_is_named_by_its_id_and_its_lock(method, operation):
    call = RestCall.parse(method, "/q/messages/an%2Fid%20of%20mine/TOKEN")
    assert call is not None
    assert (call.operation, call.entity) == (operation, "q")
    assert (call.message, call.lock_token) == ("an/id of mine", "TOKEN")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/orders/messages"),
        ("PUT", "/orders"),
        ("PUT", "/orders/messages"),
        ("DELETE", "/orders/messages"),
        ("GET", "/orders/messages/head"),
        ("PUT", "/orders/messages/head"),
        ("GET", "/orders/messages/1/2"),
        ("POST", "/messages"),
        ("POST", "/$deadletterqueue/messages"),
        ("POST", "/"),
        ("POST", ""),
    ],
)
def test_anything_else_is_for_others(method, path):
    assert RestCall.parse(method, path) is None


def test_only_sending_asks_for_the_right_to_send():
    assert {operation for operation in Operation if operation.right is Right.SEND} == {Operation.SEND}
