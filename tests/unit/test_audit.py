"""The audit log: a fixed vocabulary, one line for each event, and no secret in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bendybus import audit
from bendybus.auth.claims import put_token
from bendybus.auth.http import authorise
from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.auth.rights import Right
from bendybus.auth.sas import make_token
from bendybus.broker.broker import Broker
from bendybus.broker.clock import now
from bendybus.domain.access import AuthorizationRule
from bendybus.domain.entities import QueueDescription
from bendybus.domain.filters import RuleDescription, SqlFilter
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import ConfigError, Unauthorized
from bendybus.names import EntityPath
from bendybus.server.logs import INTERVAL_S, LINES_MAX, AuditFile, JsonFormatter, ServerLog, start_log
from bendybus.store.memory import MemoryStore
from bendybus.store.memory_catalog import MemoryCatalog

ROOT = Path(__file__).parents[2]
SECRET = "a-secret-that-nobody-may-read="


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The audit log as JSON lines."""
    stream, time = io.StringIO(), 0.0
    handler = ServerLog(stream, lambda: time, JsonFormatter())
    events = logging.getLogger("bendybus.audit")
    events.addHandler(handler)
    events.setLevel(logging.INFO)
    yield stream
    events.removeHandler(handler)
    handler.close()
    events.setLevel(logging.NOTSET)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def events_of(stream: io.StringIO) -> list[tuple[object, ...]]:
    """Each event with the values of its own fields."""
    common = {*audit.COMMON_FIELDS, "time", "level", "logger"}
    return [
        (line["event"], *(value for name, value in line.items() if name not in common))
        for line in lines(stream)
    ]


def test_the_reference_page_is_the_table_of_events() -> None:
    rows = (ROOT / "docs" / "reference" / "audit.md").read_text().splitlines()
    expected = [f"| `{name}` | {meaning} |" for name, meaning in audit.COMMON_FIELDS.items()]
    for name, event in audit.EVENTS.items():
        own = ", ".join(f"`{field}`" for field in event.fields)
        expected.append(f"| `{name}` | {event.meaning} | {own} | {'counted' if event.counted else 'each'} |")
    expected += [f"| `{name}` | {meaning} |" for name, meaning in audit.REASONS.items()]
    assert [row for row in rows if row.startswith("| `")] == expected


async def test_every_change_in_a_namespace_is_recorded_with_who_did_it(written: io.StringIO) -> None:
    with audit.acting(audit.Actor("root", "10.0.0.1:5", "shop")):
        broker = Broker(MemoryCatalog(), [MemoryStore("a"), MemoryStore("b")])
        broker.start()
        queue = QueueDescription(EntityPath("q"))
        await broker.queues.create(queue)
        await broker.queues.update(replace(queue, lock_duration_s=30, max_delivery_count=3))
        rule = AuthorizationRule("reader", ("Listen",), SECRET, SECRET, now(), now())
        ruled = replace(queue, lock_duration_s=30, max_delivery_count=3, authorization_rules=(rule,))
        await broker.queues.update(ruled)
        await broker.queues.update(
            replace(ruled, authorization_rules=(replace(rule, primary_key=SECRET * 2, rights=("Send",)),))
        )
        await broker.topics.create(TopicDescription(EntityPath("t"), enable_partitioning=True))
        await broker.topics.create_subscription(SubscriptionDescription.of("t", "s"))
        await broker.topics.add_rule("t", "s", RuleDescription("r", SqlFilter("a = 1")))
        await broker.topics.update_rule("t", "s", RuleDescription("r", SqlFilter("a = 2")))
        await broker.topics.remove_rule("t", "s", "$Default")
        await broker.set_authorization_rules([rule])
        await broker.drains.begin("b")
        await broker.drains.end("b")
        await broker.empty()
        await broker.topics.delete("t")
        await broker.queues.delete("q", force=True)
        await broker.detach("b", lambda: None)
        await broker.stop()
    assert events_of(written) == [
        ("queue-created", "q", 1),
        ("queue-updated", "q", "lock_duration_s,max_delivery_count"),
        ("authorization-rule-created", "q", "reader", "Listen"),
        ("authorization-rule-updated", "q", "reader", "Send"),
        ("key-changed", "q", "reader", "primary"),
        ("topic-created", "t", 16),
        ("subscription-created", "t/Subscriptions/s", 16),
        ("rule-created", "t/Subscriptions/s", "r"),
        ("rule-updated", "t/Subscriptions/s", "r"),
        ("rule-deleted", "t/Subscriptions/s", "$Default"),
        ("authorization-rule-created", "", "reader", "Listen"),
        ("store-drain-begun", "b"),
        ("store-drain-ended", "b"),
        ("namespace-emptied",),
        ("topic-deleted", "t", False, 1),
        ("queue-deleted", "q", True),
        ("store-retired", "b"),
    ]
    assert {(line["by"], line["peer"], line["namespace"]) for line in lines(written)} == {
        ("root", "10.0.0.1:5", "shop")
    }
    assert SECRET not in written.getvalue()


KEYS = KeyRing([AccessRule("reader", SECRET, "", Right.LISTEN), AccessRule("q", SECRET, "", Right.SEND, "q")])
# Tokens are made when tests are collected, which may be long before they are run.
LATER, EARLIER = now() // 1000 + 86_400, now() // 1000 - 600


@pytest.mark.parametrize(
    ("token", "reason", "claimed"),
    [
        (make_token("sb://h/q", "reader", "guessed", LATER), "wrong-key", "reader"),
        (make_token("sb://h/q", "nobody", SECRET, LATER), "wrong-key", "nobody"),
        (make_token("sb://h/q", "reader", SECRET, EARLIER), "expired", "reader"),
        (make_token("sb://h/other", "reader", SECRET, LATER), "wrong-audience", "reader"),
        # The key in the place of the name.
        (make_token("sb://h/q", SECRET, "reader", LATER), "wrong-key", ""),
        (f"SharedAccessSignature {SECRET}&{SECRET}", "malformed", ""),
        (f"Bearer {SECRET}", "malformed", ""),
    ],
)
def test_a_refused_token_is_recorded_with_the_reason_and_without_the_token(
    written: io.StringIO, token: str, reason: str, claimed: str
) -> None:
    with pytest.raises(Unauthorized):
        put_token(KEYS, token, "sb://h/q", now())
    assert events_of(written) == [("token-refused", reason, claimed, "q")]
    assert SECRET not in written.getvalue()


def test_a_request_is_done_by_the_holder_of_its_token(written: io.StringIO) -> None:
    with audit.acting(audit.Actor("", "10.0.0.1:5")):
        with pytest.raises(Unauthorized):
            authorise({}, KEYS, "q", Right.SEND, now())
        token = make_token("sb://h/q", "reader", SECRET, LATER)
        with pytest.raises(Unauthorized):
            authorise({"authorization": token}, KEYS, "q", Right.SEND, now())
        token = make_token("sb://h/q", "q", SECRET, LATER)
        authorise({"authorization": token}, KEYS, "q", Right.SEND, now())
        assert audit.current_actor() == audit.Actor("q@q", "10.0.0.1:5")
    assert events_of(written) == [
        ("token-refused", "no-token", "q"),
        ("operation-refused", "no-right", "q", "Send"),
    ]
    assert [line["by"] for line in lines(written)] == ["", "reader"]


def count_lines(handler: logging.Handler, read: Callable[[], str], move_on: Callable[[], None]) -> None:
    events = logging.getLogger("bendybus.audit")
    events.addHandler(handler)
    events.setLevel(logging.INFO)
    try:
        for number in range(LINES_MAX + 100):
            audit.record("token-refused", reason="wrong-key", claimed=f"n{number}")
            audit.record("queue-deleted", entity=f"q{number}")
        move_on()
        audit.record("server-stopping")
    finally:
        events.removeHandler(handler)
        handler.close()
        events.setLevel(logging.NOTSET)
    found = [json.loads(line) for line in read().splitlines()]
    assert sum(line["event"] == "queue-deleted" for line in found) == LINES_MAX + 100
    refused = [line for line in found if line["event"] == "token-refused"]
    assert len(refused) == LINES_MAX + 1
    assert refused[-1]["repeated"] == 100
    assert refused[-1]["claimed"] == f"n{LINES_MAX + 99}"
    assert found[-1]["event"] == "server-stopping"


def test_refusals_that_repeat_are_counted_and_changes_are_always_written(tmp_path: Path) -> None:
    at = [0.0]

    def move_on() -> None:
        at[0] += INTERVAL_S

    stream, file = io.StringIO(), tmp_path / "audit.jsonl"
    count_lines(ServerLog(stream, lambda: at[0], JsonFormatter()), stream.getvalue, move_on)
    count_lines(AuditFile(file, lambda: at[0]), file.read_text, move_on)


def test_the_file_is_private_and_is_opened_again_when_it_was_moved_or_truncated(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    handler = AuditFile(file)
    record = logging.LogRecord("bendybus.audit", logging.INFO, "", 0, "server-stopping", (), None)
    record.__dict__.update(audit={"event": "server-stopping"}, kind=None)
    handler.handle(record)
    assert file.stat().st_mode & 0o777 == 0o600
    file.rename(tmp_path / "audit.jsonl.1")
    handler.handle(record)
    assert file.read_text() == (tmp_path / "audit.jsonl.1").read_text()
    file.write_text("")
    handler.handle(record)
    assert json.loads(file.read_text())["event"] == "server-stopping"
    handler.close()


def test_a_file_that_cannot_be_opened_keeps_the_server_from_starting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--audit-log"):
        start_log("info", "text", tmp_path / "missing" / "audit.jsonl")


@pytest.mark.parametrize("name", ['a"b', "a\nb", "x\u2028y\u202ez", "\x1b[2J", "\ud800", "é 🦜"])
def test_a_line_of_json_is_one_line_whatever_is_in_it(name: str) -> None:
    stream = io.StringIO()
    logger = logging.Logger("bendybus.test")
    logger.addHandler(ServerLog(stream, formatter=JsonFormatter()))
    logger.info("link '%s' refused", name)
    try:
        raise ValueError(name)
    except ValueError:
        logger.exception("fault")
    logger.handlers[0].close()
    text = stream.getvalue()
    assert text.isascii() and text.count("\n") == 2
    refused, fault = map(json.loads, text.splitlines())
    assert refused["message"] == f"link '{name}' refused"
    assert fault["level"] == "ERROR" and "ValueError" in fault["exception"]


def test_a_value_in_the_text_form_cannot_pass_for_a_field() -> None:
    stream = io.StringIO()
    handler = ServerLog(stream)
    events = logging.getLogger("bendybus.audit")
    events.addHandler(handler)
    events.setLevel(logging.INFO)
    audit.record("queue-deleted", audit.Actor("", "h:1"), entity="x by=root\n2026 INFO")
    events.removeHandler(handler)
    events.setLevel(logging.NOTSET)
    handler.close()
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r'queue-deleted peer=h:1 entity="x by=root\n2026 INFO"')
