"""Refusals of the management API begin with the sentences that Azure gives, on which clients match."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bendybus.domain.entities import Tier
from fix_management import HOST, Api, open_namespace

MORE = "To know more visit https://aka.ms/sbResourceMgrExceptions."
SUBSCRIPTION, RULE, TOPIC = "SubscriptionDescription", "RuleDescription", "TopicDescription"
SIZE = "MaxMessageSizeInKilobytes"


async def prepare(api: Api) -> None:
    """A queue `q`, and a topic `t` with a subscription `s` and its default rule."""
    assert (await api("PUT", "q")).status == 201
    assert (await api("PUT", "t", kind=TOPIC)).status == 201
    assert (await api("PUT", "t/Subscriptions/s", kind=SUBSCRIPTION)).status == 201


def of(name: str, value: object) -> str:
    return f"<{name}>{value}</{name}>"


CONFLICT = (
    "SubCode=40900. Conflict. You're requesting an operation that isn't allowed in the resource's current "
    f"state. {MORE} . "
)
NOT_FOUND = f"SubCode=40400. Not Found. The Operation doesn't exist. {MORE} . "
NOT_HOSTED = "No service is hosted at the specified address. "
NO_POLICY = f"The incoming request is not recognized as a namespace policy put request. {MORE} "
LOCK = (
    f"The supplied lock time exceeds the allowed maximum of '5' minutes. {MORE}\r\n"
    "Parameter name: LockDuration\r\nActual value was 25.00:00:00. "
)
WINDOW = (
    "SubCode=40000. The value supplied must be between 00:00:20 and 7.00:00:00.\r\n"
    "Parameter name: DuplicateDetectionHistoryTimeWindow\r\nActual value was 25.00:00:00. "
)
OLD_SIZE = (
    "SubCode=40000. The entity description of type 'QueueDescription' has unsupported properties for "
    "api-version '2017-04' in the request. Try including the correct api-version query string in the request."
)
PREMIUM_SIZE = (
    f"SubCode=40000. The property value for '{SIZE}' must be between 1024 and 102400 when the namespace 'ns' "
    f"is using 'Premium' tier.\r\nParameter name: {SIZE}\r\nActual value was 1023."
)

# Method and path, what else the request has, the status, how the detail begins, and its tracker.
ERRORS: dict[str, tuple[str, str, dict[str, Any], int, str, str]] = {
    "a queue that exists": ("PUT", "q", {}, 409, CONFLICT, f"{HOST}:q"),
    "a topic that exists": ("PUT", "t", {"kind": TOPIC}, 409, CONFLICT, f"{HOST}:t"),
    "a subscription that exists": (
        "PUT",
        "t/Subscriptions/s",
        {"kind": SUBSCRIPTION},
        409,
        f"The messaging entity 'ns:Topic:t|s' already exists. {MORE}  ",
        "NoSystemTracker",
    ),
    "a rule that exists": (
        "PUT",
        "t/Subscriptions/s/Rules/$Default",
        {"kind": RULE},
        409,
        f"The messaging entity 'ns:Topic:t|s|$Default' already exists. {MORE}  ",
        "NoSystemTracker",
    ),
    "update a missing queue": ("PUT", "x", {"update": True}, 404, NOT_FOUND, f"{HOST}:x"),
    "update a missing topic": ("PUT", "x", {"update": True, "kind": TOPIC}, 404, NOT_FOUND, f"{HOST}:x"),
    "update a missing subscription": (
        "PUT",
        "t/Subscriptions/x",
        {"update": True, "kind": SUBSCRIPTION},
        404,
        f"Entity 'ns:Topic:t|x' was not found. {MORE}  ",
        "NoSystemTracker",
    ),
    "update a missing rule": (
        "PUT",
        "t/Subscriptions/s/Rules/x",
        {"update": True, "kind": RULE},
        404,
        f"Entity 'ns:Topic:t|s|x' was not found. {MORE}  ",
        "NoSystemTracker",
    ),
    "get a missing subscription": (
        "GET",
        "t/Subscriptions/x",
        {},
        404,
        f"Entity 'ns:Topic:t|x' was not found. {MORE}  ",
        "NoSystemTracker",
    ),
    "get a missing rule": (
        "GET",
        "t/Subscriptions/s/Rules/x",
        {},
        404,
        f"Entity 'ns:Topic:t|s|x' was not found. {MORE}  ",
        "NoSystemTracker",
    ),
    "update a subscription of a missing topic": (
        "PUT",
        "x/Subscriptions/s",
        {"update": True, "kind": SUBSCRIPTION},
        404,
        NO_POLICY,
        f"{HOST}:x/Subscriptions/s",
    ),
    "delete a missing queue or topic": ("DELETE", "x", {}, 404, NOT_HOSTED, f"{HOST}:x"),
    "delete below a missing topic": (
        "DELETE",
        "x/Subscriptions/s",
        {},
        404,
        NOT_HOSTED,
        f"{HOST}:x/Subscriptions/s",
    ),
    "delete a missing subscription": (
        "DELETE",
        "t/Subscriptions/x",
        {},
        404,
        f"The messaging entity 'ns:Topic:t|x' could not be found. {MORE}  ",
        "NoSystemTracker",
    ),
    "delete a missing rule": (
        "DELETE",
        "t/Subscriptions/s/Rules/x",
        {},
        404,
        f"The messaging entity 'ns:Topic:t|s|x' could not be found. {MORE}  ",
        "NoSystemTracker",
    ),
    "get a dead-letter queue": (
        "GET",
        "q/$DeadLetterQueue",
        {},
        400,
        f"The specified HTTP verb (GET) is not valid. {MORE} . ",
        "ns:Queue:q",
    ),
    "get the dead-letter queue of a topic": (
        "GET",
        "t/$DeadLetterQueue",
        {},
        400,
        f"The specified HTTP verb (GET) is not valid. {MORE} . ",
        "ns:Topic:t",
    ),
    "update with a tag of long ago": (
        "PUT",
        "q",
        {"if_match": "638215912539530000"},
        412,
        "SubCode=41200. If-Match is '638215912539530000', and the tag of 'q' is 6",
        f"{HOST}:q",
    ),
    "put a subscription without a name": (
        "PUT",
        "t/subscriptions/",
        {"kind": SUBSCRIPTION},
        400,
        f"The specified HTTP verb (PUT) is not valid. {MORE} . ",
        "ns:Topic:t",
    ),
    "change RequiresSession of a queue": (
        "PUT",
        "q",
        {"update": True, "elements": of("RequiresSession", "true")},
        400,
        "SubCode=40000. The value for the RequiresSession property of an existing Queue cannot be changed. "
        f"{MORE} . ",
        f"{HOST}:q",
    ),
    "change RequiresSession of a subscription": (
        "PUT",
        "t/Subscriptions/s",
        {"update": True, "kind": SUBSCRIPTION, "elements": of("RequiresSession", "true")},
        400,
        "The value for the RequiresSession property of an existing Subscription cannot be changed. "
        f"{MORE} . ",
        "ns:Topic:t",
    ),
    "change the partitioning of a topic": (
        "PUT",
        "t",
        {"update": True, "kind": TOPIC, "elements": of("EnablePartitioning", "true")},
        400,
        "SubCode=40000. Partitioning cannot be changed for Topic. ",
        f"{HOST}:t",
    ),
    "too long a lock of a queue": (
        "PUT",
        "x",
        {"elements": of("LockDuration", "P25D")},
        400,
        f"SubCode=40000. {LOCK}",
        f"{HOST}:x",
    ),
    "too long a lock of a missing subscription": (
        "PUT",
        "t/Subscriptions/x",
        {"update": True, "kind": SUBSCRIPTION, "elements": of("LockDuration", "P25D")},
        400,
        LOCK,
        "ns:Topic:t",
    ),
    "too long a window": (
        "PUT",
        "x",
        {"elements": of("DuplicateDetectionHistoryTimeWindow", "P25D")},
        400,
        WINDOW,
        f"{HOST}:x",
    ),
    "a message size in an old version": (
        "PUT",
        "x",
        {"elements": of(SIZE, 256), "query": "api-version=2017-04"},
        400,
        OLD_SIZE,
        f"{HOST}:x",
    ),
    "a large message size on Standard": (
        "PUT",
        "x",
        {"elements": of(SIZE, 1024)},
        400,
        f"SubCode=40000. Bad Request. {MORE} . ",
        f"{HOST}:x",
    ),
    "a small message size on Premium": (
        "PUT",
        "x",
        {"elements": of(SIZE, 1023)},
        400,
        PREMIUM_SIZE,
        f"{HOST}:x",
    ),
    "a message size above that of Premium": (
        "PUT",
        "x",
        {"elements": of(SIZE, 102_401)},
        400,
        PREMIUM_SIZE.replace("1023.", "102401."),
        f"{HOST}:x",
    ),
    "a negative number of entries to skip": (
        "GET",
        "$Resources/queues",
        {"query": "$skip=-1&api-version=2021-05"},
        400,
        "Parameter 'skip' should be non-negative integer.\r\nParameter name: skip. ",
        f"{HOST}:$Resources/queues",
    ),
    "a wrong signature": (
        "GET",
        "q",
        {"key": "not the key"},
        401,
        "InvalidSignature: The token has an invalid signature. ",
        "NoSystemTracker",
    ),
}


@pytest.mark.parametrize("error", ERRORS)
async def test_a_refusal_begins_with_the_sentence_that_azure_gives(error: str) -> None:
    method, path, rest, status, begins, tracker = ERRORS[error]

    async with open_namespace(Tier.PREMIUM if "Premium" in error else Tier.STANDARD) as api:
        await prepare(api)
        answer = await api(method, path, **rest)
        assert answer.status == status
        sent = answer.body
        assert f"<Detail>{begins}" in sent
        assert not sent.startswith("<?xml")
        guid = "[0-9a-f-]{36}" if status == 401 else "[0-9a-f-]{36}_G[0-9]+"
        at = "[-0-9]{10}T[:0-9]{8}"
        end = rf"TrackingId:{guid}, SystemTracker:{re.escape(tracker)}, Timestamp:{at}</Detail>"
        assert re.search(end, sent), sent


@pytest.mark.parametrize(
    "path",
    ["", "x", "x/Subscriptions", "x/Subscriptions/s", "x/Subscriptions/s/Rules/r", "x/$DeadLetterQueue"],
)
async def test_what_is_not_there_is_shown_as_an_empty_feed(path: str) -> None:
    async with open_namespace() as api:
        answer = await api("GET", path)
        assert (answer.status, answer.text("title")) == (200, "Publicly Listed Services")
        assert answer.text("subtitle") == "This is the list of publicly-listed services currently available."
        assert re.fullmatch("uuid:[0-9a-f-]{36};id=[0-9]+", answer.text("id") or "")
        assert answer.text("generator") == "Service Bus 1.1"
        assert "<entry" not in answer.body


READ = "Manage,EntityRead claims required for this operation. "
WRITE = "Authorization failed for specified action: Manage,EntityWrite. "
DELETE = "Authorization failed for specified action: Manage,EntityDelete. "


def below_a_topic(operation: str, path: str) -> str:
    access = f"Unauthorized access for '{operation}' operation on endpoint 'sb://{HOST}/{path}'. "
    return f"401 SubCode=40100: Unauthorized : {access}"


@pytest.mark.parametrize(
    ("method", "path", "begins"),
    [
        ("GET", "q", READ),
        ("GET", "t", READ),
        ("GET", "$Resources/queues", READ),
        ("GET", "$Resources/topics", READ),
        ("GET", "$namespaceinfo", READ),
        ("PUT", "q", WRITE),
        ("PUT", "x", WRITE),
        ("DELETE", "q", DELETE),
        ("DELETE", "x", DELETE),
        *(
            (method, path, below_a_topic(operation, path))
            for method, path, operation in (
                ("GET", "t/Subscriptions/s", "GetSubscription"),
                ("GET", "t/Subscriptions/x", "GetSubscription"),
                ("GET", "t/Subscriptions", "EnumerateSubscriptions"),
                ("PUT", "t/Subscriptions/x", "CreateOrUpdateSubscription"),
                ("DELETE", "t/Subscriptions/s", "DeleteSubscription"),
                ("GET", "t/Subscriptions/s/Rules", "EnumerateRules"),
                ("GET", "t/Subscriptions/s/Rules/r", "GetRule"),
                ("PUT", "t/Subscriptions/s/Rules/r", "CreateOrUpdateRule"),
                ("DELETE", "t/Subscriptions/s/Rules/r", "DeleteRule"),
            )
        ),
    ],
)
async def test_every_request_needs_manage_and_is_refused_with_the_sentence_that_azure_gives(
    method: str, path: str, begins: str
) -> None:
    async with open_namespace() as api:
        await prepare(api)
        answer = await api(method, path, rule="listens")
        assert answer.status == 401 and "etag" not in answer.headers
        assert f"<Code>401</Code><Detail>{begins}TrackingId:" in answer.body
        assert "insufficient_scope" in answer.headers["www-authenticate"]


@pytest.mark.parametrize("path", ["", "x", "x/Subscriptions/s"])
async def test_what_is_not_there_is_an_empty_feed_without_manage_too(path: str) -> None:
    async with open_namespace() as api:
        await prepare(api)
        answer = await api("GET", path, rule="listens")
        assert (answer.status, answer.text("title")) == (200, "Publicly Listed Services")


@pytest.mark.row("P-10")
@pytest.mark.parametrize("path", ["q", "t", "t/Subscriptions", "t/Subscriptions/s"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_old_versions_are_told_that_they_cannot_have_partitioned_entities(
    method: str, path: str
) -> None:
    async with open_namespace() as api:
        for name, kind in (("q", "QueueDescription"), ("t", TOPIC)):
            await api("PUT", name, of("EnablePartitioning", "true"), kind=kind)
        await api("PUT", "t/Subscriptions/s", kind=SUBSCRIPTION)
        for query in ("", "api-version=2013-08"):
            answer = await api(method, path, query=query)
            assert answer.status == 400 and "api-version=2013-10 or later" in answer.detail
        assert (await api(method, path, query="api-version=2013-10")).status in (200, 400)
