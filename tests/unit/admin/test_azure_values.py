"""Values that clients send come back as Azure gives them back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from urllib.parse import urljoin
from xml.etree import ElementTree

import pytest

from bendybus.atom import ATOM
from bendybus.domain.entities import QueueDescription, Tier
from bendybus.domain.topic_entities import SubscriptionDescription
from bendybus.names import Instant
from fix_management import HOST, Answer, open_namespace

SUBSCRIPTION, RULE, TOPIC = "SubscriptionDescription", "RuleDescription", "TopicDescription"
UNLIMITED = "P10675199DT2H48M5.4775807S"


def of(name: str, value: object) -> str:
    return f"<{name}>{value}</{name}>"


# What is sent, and what is then shown; None for an element that is not there.
VALUES: dict[str, tuple[str, dict[str, str | None]]] = {
    **{
        f"{name} as {url}": (of(name, url), {name: url})
        for name in ("ForwardTo", "ForwardDeadLetteredMessagesTo")
        for url in (f"http://{HOST}/to", f"https://{HOST}/to", f"sb://{HOST}/to", "to")
    },
    **{
        f"{name} of {text}": (of(name, text), {name: text})
        for name in ("DefaultMessageTimeToLive", "AutoDeleteOnIdle")
        for text in ("P10675199DT2H48M5.477539S", "P10675199DT2H48M5.477S", UNLIMITED, "PT600S", "P0DT10M")
    },
    "LockDuration": (of("LockDuration", "PT45.0S"), {"LockDuration": "PT45.0S"}),
    "a queue that forwards": (
        of("ForwardTo", f"sb://{HOST}/to") + of("AutoDeleteOnIdle", "PT10M"),
        {"AutoDeleteOnIdle": UNLIMITED, "ForwardTo": f"sb://{HOST}/to"},
    ),
    "ForwardTo in capitals": (
        of("ForwardTo", f"SB://{HOST.upper()}/TO"),
        {"ForwardTo": f"sb://{HOST.lower()}/TO"},
    ),
    "a queue with sessions that forwards": (
        of("RequiresSession", "true") + of("ForwardTo", f"sb://{HOST}/to"),
        {"RequiresSession": "true", "ForwardTo": f"sb://{HOST}/to"},
    ),
    "a queue that forwards to itself": (of("ForwardTo", "q"), {"ForwardTo": "q"}),
    "SupportOrdering": (of("SupportOrdering", "false"), {"SupportOrdering": "false"}),
    "SupportOrdering left out": ("", {"SupportOrdering": "true", "IsAnonymousAccessible": "false"}),
    "IsAnonymousAccessible": (of("IsAnonymousAccessible", "true"), {"IsAnonymousAccessible": "true"}),
    "authorization rules": (
        of(
            "AuthorizationRules",
            of(
                "AuthorizationRule",
                of("Rights", of("AccessRights", "Send"))
                + of("KeyName", "sends")
                + of("PrimaryKey", "p" * 44)
                + of("SecondaryKey", "s" * 44),
            ),
        ),
        {"KeyName": "sends", "CreatedTime": None, "ModifiedTime": None},
    ),
}


@pytest.mark.parametrize("case", VALUES)
@pytest.mark.parametrize("partitioned", ["true", "false"])
async def test_a_value_comes_back_as_azure_gives_it_back(case: str, partitioned: str) -> None:
    sent, shown = VALUES[case]
    if "left out" in case:
        partitioned = "false"

    async with open_namespace() as api:
        await api("PUT", "to")
        made = await api("PUT", "q", sent + of("EnablePartitioning", partitioned))
        assert made.status == 201, made.body
        for answer in (made, await api("GET", "q")):
            assert {name: answer.text(name) for name in shown} == shown
        # And after an update that says nothing of it, except for what is taken away in that way.
        updated = await api("PUT", "q", of("MaxDeliveryCount", 3), update=True)
        kept = {name: text for name, text in shown.items() if "Forward" not in name}
        assert {name: updated.text(name) for name in kept} == kept
        queue = api.broker.queues.get("q").description
        assert QueueDescription.from_record(queue.to_record()).as_sent == queue.as_sent


async def test_what_forwards_is_never_idle_and_shows_it_unless_forward_to_comes_late() -> None:
    """Python's SDK writes a queue's ForwardTo last, and its tests find the AutoDeleteOnIdle that they set."""
    forward, idle = of("ForwardTo", "to"), of("AutoDeleteOnIdle", "PT10M")
    async with open_namespace() as api:
        await api("PUT", "to")
        for update in (False, True):
            late = await api("PUT", "q", idle + forward, update=update)
            assert late.text("AutoDeleteOnIdle") == "PT10M"
            assert api.broker.queues.get("q").description.auto_delete_on_idle_s is None
        assert (await api("PUT", "q", forward + idle, update=True)).text("AutoDeleteOnIdle") == UNLIMITED
        assert (await api("GET", "q")).text("AutoDeleteOnIdle") == UNLIMITED


async def test_a_forward_that_is_a_url_means_the_entity() -> None:
    async with open_namespace() as api:
        await api("PUT", "To/it")
        await api("PUT", "t", kind=TOPIC)
        url = f"sb://{HOST}/to/IT"
        for path, kind in (("q", "QueueDescription"), ("t/Subscriptions/s", SUBSCRIPTION)):
            made = await api("PUT", path, of("ForwardTo", url), kind=kind)
            assert (made.status, made.text("ForwardTo")) == (201, url)
            kept = api.broker.entities.find(path).description
            assert isinstance(kept, QueueDescription) and kept.forward_to == "to/IT"
            again = await api("PUT", path, of("ForwardTo", "to/it"), kind=kind, update=True)
            assert again.text("ForwardTo") == "to/it"
            taken_away = await api("PUT", path, kind=kind, update=True)
            assert taken_away.text("ForwardTo") is None
        subscription = api.broker.topics.get_subscription("t", "s").description
        assert SubscriptionDescription.from_record(subscription.to_record()).as_sent == subscription.as_sent


def typed(kind: str, text: str, schema: str = "http://www.w3.org/2001/XMLSchema") -> str:
    value = f'<Value xmlns:d6p1="{schema}" i:type="d6p1:{kind}">{text}</Value>'
    return f"<KeyValueOfstringanyType><Key>k</Key>{value}</KeyValueOfstringanyType>"


DURATION = typed("duration", "PT5.50S", "http://schemas.microsoft.com/2003/10/Serialization/")
SQL = of("SqlExpression", "a = @k") + of("CompatibilityLevel", 20)

# The inside of a filter, as it is sent and as it comes back.
FILTERS: dict[str, str] = {
    **{
        kind: of("Parameters", typed(kind, text))
        for kind, text in (
            ("double", "3"),
            ("int", "3"),
            ("long", "3"),
            ("dateTime", "2020-07-05T11:12:13"),
            ("dateTime", "2020-07-05T11:12:13.1234567Z"),
            ("string", "x"),
        )
    },
    "duration": of("Parameters", DURATION),
    "preprocessing": of("RequiresPreprocessing", "true"),
    "nothing": "",
}


@pytest.mark.parametrize("case", FILTERS)
async def test_a_rule_comes_back_as_it_was_sent(case: str) -> None:
    inner = SQL + FILTERS[case]
    if "Parameters" not in inner:
        inner = inner.replace("@k", "1")
    text = f'<Filter i:type="SqlFilter">{inner}</Filter>'
    action = f'<Action i:type="SqlRuleAction">{inner.replace("a = ", "SET a = ")}</Action>'

    async with open_namespace() as api:
        await api("PUT", "t", kind=TOPIC)
        await api("PUT", "t/Subscriptions/s", kind=SUBSCRIPTION)
        path = "t/Subscriptions/s/Rules/r"
        sent = text + action
        made = await api("PUT", path, sent, kind=RULE)
        assert made.status == 201, made.body
        for answer in (made, await api("GET", path)):
            assert sent in answer.body
        kept = api.broker.topics.get_subscription("t", "s").description
        again = SubscriptionDescription.from_record(kept.to_record())
        assert again.rule("r").filter.preprocessing == (True if case == "preprocessing" else None)  # type: ignore[union-attr]


async def test_only_the_rule_of_a_new_subscription_has_empty_parameters() -> None:
    async with open_namespace() as api:
        await api("PUT", "t", kind=TOPIC)
        await api("PUT", "t/Subscriptions/s", kind=SUBSCRIPTION)
        await api("PUT", "t/Subscriptions/s/Rules/all", '<Filter i:type="TrueFilter"/>', kind=RULE)
        assert "<Parameters/>" in (await api("GET", "t/Subscriptions/s/Rules/$Default")).body
        assert "<Parameters" not in (await api("GET", "t/Subscriptions/s/Rules/all")).body


async def test_a_client_scoped_subscription_says_so() -> None:
    async with open_namespace(Tier.PREMIUM) as api:
        await api("PUT", "t", kind=TOPIC)
        made = await api("PUT", "t/Subscriptions/s$c$D", kind=SUBSCRIPTION)
        assert made.status == 201
        assert "<IsClientAffine>true</IsClientAffine>" in made.body
        refused = await api("PUT", "t/Subscriptions/s$c$ND", kind=SUBSCRIPTION)
        assert refused.status == 400 and "first consumer" in refused.body
    async with open_namespace() as api:
        await api("PUT", "t", kind=TOPIC)
        refused = await api("PUT", "t/Subscriptions/s$c$D", kind=SUBSCRIPTION)
        assert refused.status == 400 and "standard tier" in refused.body


async def test_an_entry_and_a_list_have_the_shape_of_azures() -> None:
    async with open_namespace() as api:
        await api("PUT", "t", kind=TOPIC)
        made = await api("PUT", "t/Subscriptions/s", kind=SUBSCRIPTION)
        assert made.body.endswith(
            "<IsClientAffine>false</IsClientAffine></SubscriptionDescription></content></entry>"
        )
        assert "<author>" not in made.body and not made.body.startswith("<?xml")
        query = "api-version=2021-05&enrich=False"
        for path in ("t/subscriptions/S", "T/Subscriptions/s/rules/$Default"):
            read = await api("GET", path, query=query)
            assert read.text("id") == f"sb://{HOST}/{path}?{query}"
        assert made.text("id") == f"https://{HOST}/t/Subscriptions/s?api-version=2021-05"
        for path, title in (
            ("$Resources/queues", "Queues"),
            ("$Resources/topics", "Topics"),
            ("t/Subscriptions", "Subscriptions"),
            ("t/Subscriptions/s/Rules", "Rules"),
        ):
            listed = await api("GET", path, query=query)
            assert (listed.text("title"), listed.text("id")) == (title, f"https://{HOST}/{path}?{query}")
        await api("PUT", "t/Subscriptions/u", kind=SUBSCRIPTION)
        page = await api("GET", "t/Subscriptions", query=f"$top=1&{query}")
        following = f"https://{HOST}/t/Subscriptions?%24skip=1&%24top=1&{query}"
        assert f'<link rel="next" href="{following.replace("&", "&amp;")}"/>' in page.body
        topic = await api("GET", "t")
        assert topic.text("name") == "ns"
        assert (topic.text("published") or "").count(".") == 0
        assert "Alias" not in (await api("GET", "$namespaceinfo")).body


# What stands between Status and AutoDeleteOnIdle in the answer to a create, and in that to a GET.
ORDERS: dict[str, tuple[str, str, str]] = {
    "QueueDescription": (
        "q",
        "ForwardTo CreatedAt UpdatedAt UserMetadata SupportOrdering",
        "ForwardTo CreatedAt UpdatedAt AccessedAt UserMetadata SupportOrdering CountDetails",
    ),
    TOPIC: (
        "n",
        "CreatedAt UpdatedAt UserMetadata SupportOrdering",
        "CreatedAt UpdatedAt AccessedAt UserMetadata SupportOrdering CountDetails SubscriptionCount "
        "SqlFilterCount CorrelationFilterCount",
    ),
    SUBSCRIPTION: (
        "t/Subscriptions/s",
        "ForwardTo CreatedAt UpdatedAt AccessedAt UserMetadata",
        "ForwardTo CreatedAt UpdatedAt AccessedAt UserMetadata CountDetails",
    ),
}


def names_in(answer: Answer) -> list[str]:
    """Of the elements of the description."""
    content = next(
        each for each in ElementTree.fromstring(answer.body).iter() if each.tag.endswith("content")
    )
    return [each.tag.rpartition("}")[2] for each in content[0]]


@pytest.mark.parametrize("kind", ORDERS)
async def test_elements_stand_in_the_order_of_azure_and_a_new_entity_has_no_counts(kind: str) -> None:
    path, new, read = ORDERS[kind]

    async with open_namespace() as api:
        await api("PUT", "to")
        await api("PUT", "t", kind=TOPIC)
        forward = of("ForwardTo", "to") if "ForwardTo" in new else ""
        sent, query = of("UserMetadata", "note") + forward, "api-version=2024-05"
        made = await api("PUT", path, sent, kind=kind, query=query)
        got = await api("GET", path, query=query)
        for answer, expected in ((made, new), (got, read)):
            names = names_in(answer)
            assert names[names.index("Status") + 1 : names.index("AutoDeleteOnIdle")] == expected.split()
        if kind == SUBSCRIPTION:
            assert made.text("AccessedAt") == "0001-01-01T00:00:00"
            assert got.text("AccessedAt") == got.text("CreatedAt")


def ticks(shown: str | None) -> str:
    """As .NET counts them."""
    at = datetime.fromisoformat(shown or "")
    return str((at - datetime(1, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 10)


async def test_a_tag_is_when_the_queue_or_topic_was_updated_last() -> None:
    async with open_namespace() as api:
        for path, kind in (("q", "QueueDescription"), ("t", TOPIC)):
            made = await api("PUT", path, kind=kind)
            assert "etag" not in made.headers
            tag = ticks(made.text("UpdatedAt"))
            assert len(tag) == 18 and (await api("GET", path)).headers["etag"] == tag
        of_topic = (await api("GET", "t")).headers["etag"]
        for method, path, kind in (
            ("PUT", "t/Subscriptions/s", SUBSCRIPTION),
            ("GET", "t/Subscriptions/s", SUBSCRIPTION),
            ("GET", "t/Subscriptions/s/Rules", RULE),
            ("GET", "t/Subscriptions/none", SUBSCRIPTION),
            ("PUT", "t", TOPIC),
            ("GET", "t/$DeadLetterQueue", TOPIC),
        ):
            assert (await api(method, path, kind=kind)).headers["etag"] == of_topic
        for path in ("x", "", "$Resources/queues", "$namespaceinfo"):
            assert "etag" not in (await api("GET", path)).headers


async def test_an_update_with_the_tag_that_was_read_succeeds_and_with_an_older_one_does_not() -> None:
    async with open_namespace() as api:
        await api("PUT", "t", kind=TOPIC)
        await api("PUT", "t/Subscriptions/s", kind=SUBSCRIPTION)
        await api("PUT", "q")
        count = of("MaxDeliveryCount", 3)
        for path, kind in (("q", "QueueDescription"), ("t/Subscriptions/s", SUBSCRIPTION)):
            for written in ("{}", '"{}"', 'W/"{}"', "*"):
                tag = (await api("GET", path)).headers["etag"]
                answer = await api("PUT", path, count, kind=kind, if_match=written.format(tag))
                assert (answer.status, answer.text("MaxDeliveryCount")) == (200, "3")
                first = api.broker.entities.find(path.partition("/")[0])
                first.updated_at = Instant(first.updated_at + 1)
                assert (await api("PUT", path, kind=kind, if_match=tag)).status == 412
        for path, kind in (("q", "QueueDescription"), ("t", TOPIC)):
            tag = (await api("GET", path)).headers["etag"]
            sent = of("DefaultMessageTimeToLive", "P1D")
            both = [api("PUT", path, sent, kind=kind, if_match=tag) for _ in range(2)]
            assert sorted([each.status for each in await asyncio.gather(*both)]) == [200, 412]
        missing = await api("PUT", "x", if_match="638215912539530000")
        assert missing.status == 404


async def test_entries_of_a_list_have_links_relative_to_the_list() -> None:
    async with open_namespace() as api:
        await api("PUT", "deep/q")
        await api("PUT", "t", kind=TOPIC)
        await api("PUT", "t/Subscriptions/s", kind=SUBSCRIPTION)
        query = "api-version=2021-05&enrich=False&$skip=0"
        for path, link, entity in (
            ("$Resources/queues", "../deep/q", "deep/q"),
            ("$Resources/topics", "../t", "t"),
            ("t/Subscriptions", "Subscriptions/s", "t/Subscriptions/s"),
            ("t/Subscriptions/s/rules", "rules/$Default", "t/Subscriptions/s/rules/$Default"),
        ):
            feed = ElementTree.fromstring((await api("GET", path, query=query)).body)
            entry = feed.find(f"{{{ATOM}}}entry")
            assert entry is not None
            base = entry.get("{http://www.w3.org/XML/1998/namespace}base") or ""
            self_link = entry.find(f"{{{ATOM}}}link")
            assert base == f"https://{HOST}/{path}?{query}" and self_link is not None
            href = self_link.get("href") or ""
            assert href == f"{link}?api-version=2021-05"
            assert urljoin(base, href) == entry.findtext(f"{{{ATOM}}}id")
            assert entry.findtext(f"{{{ATOM}}}id") == f"https://{HOST}/{entity}?api-version=2021-05"


CORRELATION = '<Filter i:type="CorrelationFilter"><Label>l</Label>{}</Filter>'


@pytest.mark.parametrize("properties", ["", of("Properties", typed("string", "x"))])
async def test_a_correlation_filter_has_properties_only_where_they_were_sent(properties: str) -> None:
    async with open_namespace() as api:
        await api("PUT", "t", kind=TOPIC)
        await api("PUT", "t/Subscriptions/s", kind=SUBSCRIPTION)
        sent = CORRELATION.format(properties)
        made = await api("PUT", "t/Subscriptions/s/Rules/r", sent, kind=RULE)
        for answer in (made, await api("GET", "t/Subscriptions/s/Rules/r")):
            assert sent in answer.body


@pytest.mark.parametrize(
    ("path", "kind"), [("q", "QueueDescription"), ("t", TOPIC), ("t/Subscriptions/s", SUBSCRIPTION)]
)
async def test_updates_at_the_same_time_keep_what_they_leave_out(path: str, kind: str) -> None:
    async with open_namespace() as api:
        if kind == SUBSCRIPTION:
            await api("PUT", "t", kind=TOPIC)
        await api("PUT", path, kind=kind)
        values = {"DefaultMessageTimeToLive": "PT120S", "UserMetadata": "mine", "AutoDeleteOnIdle": "PT600S"}
        texts = [
            of("DefaultMessageTimeToLive", "PT120S") + of("UserMetadata", "mine"),
            of("AutoDeleteOnIdle", "PT600S") + of("UserMetadata", "mine"),
        ]
        await asyncio.gather(*(api("PUT", path, text, kind=kind, update=True) for text in texts))
        answer = await api("GET", path)
        assert {name: answer.text(name) for name in values} == values
