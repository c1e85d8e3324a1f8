"""An entity: counts, rates and ages over time, and each of its partitions; a topic with its subscriptions."""

from __future__ import annotations

from time import monotonic
from typing import Any

from nicegui import ui

from bendybus.management.properties import SUBSCRIPTION, new_elements, shown_values, subscription_path
from bendybus_portal.access import in_thread
from bendybus_portal.components.charts import line_chart
from bendybus_portal.components.dialogs import field, form_dialog, switch
from bendybus_portal.components.entity_frame import entity_frame, entity_title
from bendybus_portal.components.live import Live, markup, put
from bendybus_portal.components.partition_panel import partition_panel
from bendybus_portal.components.table import Column, empty_state, table
from bendybus_portal.history import EntityHistory
from bendybus_portal.layout import Visit, button, card, portal_page
from bendybus_portal.markup import EMPTY, Html, badge, join, link, tag
from bendybus_portal.reading import EntityInfo, describe, partitions
from bendybus_portal.sessions import Session
from bendybus_portal.shown import number, percent, size

__all__: list[str] = []


@portal_page("/entity", entity_title)
async def entity_page(visit: Visit) -> None:
    session = visit.session
    info = await entity_frame(visit, "entity")
    if not session.rights.listen:
        markup(
            empty_state(
                "lock", "Counts are not shown", "This key may send messages, and may not look at them."
            )
        )
        return
    cards = markup(classes="stats")
    live = Live(session)
    if session.rights.extensions:
        charts = markup(classes="chart-row")
        with card("Partitions"):
            panel = markup()
        history = session.memory.setdefault(f"history:{info.path}", EntityHistory())

        async def refresh_partitions() -> None:
            told = await in_thread(partitions, session.access, info.path)
            at = monotonic()
            history.add(at, told)
            put(cards, _cards(info, told["partitions"]))
            put(charts, _charts(history, at, topic=info.kind == "topic"))
            put(panel, partition_panel(told, history, session.access.namespace.netloc))

        live.add(refresh_partitions)
    else:

        async def refresh_counts() -> None:
            put(
                cards,
                _cards_of_description(await in_thread(describe, session.access, session.rights, info.path)),
            )

        live.add(refresh_counts)
    if info.kind == "topic" and session.rights.manage:
        live.add(_subscriptions(session, info))
    await live.start()


def _stat(label: str, value: str, detail: str = "", tone: str = "") -> Html:
    return tag(
        "div",
        tag("span", label, class_="stat-label"),
        tag("span", value, class_="stat-value"),
        tag("span", detail, class_="soft") if detail else EMPTY,
        class_=f"stat {tone}".strip(),
    )


def _cards(info: EntityInfo, told: list[dict[str, Any]]) -> Html:
    def total(name: str) -> int:
        return sum(each.get(name) or 0 for each in told)

    away = sum(not each["available"] for each in told)
    held, most = total("sizeBytes"), int(str(info.values.get("maxSizeInMegabytes") or 0)) * 1024 * 1024
    letters = total("deadLetters")
    queue = info.kind != "topic"
    return join(
        _stat("Active", number(total("active")), f"{number(total('locked'))} locked") if queue else EMPTY,
        _stat("Dead letters", number(letters), "", "warn" if letters else "") if queue else EMPTY,
        _stat("Scheduled", number(total("scheduled"))),
        _stat("Deferred", number(total("deferred"))) if queue else EMPTY,
        _stat("Size", size(held), f"{percent(held / most)} of {size(most)}" if most else ""),
        _stat("Availability", "Limited", f"{away} of {len(told)} partitions away", "bad")
        if away
        else _stat(
            "Availability", "Available", f"{len(told)} partition{'s' if len(told) > 1 else ''}", "good"
        ),
    )


def _cards_of_description(info: EntityInfo) -> Html:
    counts = info.counts
    limited = info.values.get("entityAvailabilityStatus") == "Limited"
    return join(
        _stat("Active", number(counts.get("activeMessageCount", 0))),
        _stat("Dead letters", number(counts.get("deadLetterMessageCount", 0))),
        _stat("Scheduled", number(counts.get("scheduledMessageCount", 0))),
        _stat("Size", size(info.values.get("sizeInBytes", 0))),
        _stat("Availability", "Limited" if limited else "Available", "", "bad" if limited else "good"),
    )


def _charts(history: EntityHistory, at: float, *, topic: bool) -> Html:
    if topic:
        return line_chart("Messages", "/ s", [("Arriving", history.arriving)], at)
    return join(
        line_chart("Messages", "/ s", [("Arriving", history.arriving), ("Leaving", history.leaving)], at),
        line_chart("Waiting messages", "", [("Active", history.depth)], at),
        line_chart("Age of the oldest message", "s", [("Oldest", history.oldest_s)], at),
    )


# -- subscriptions ------------------------------------------------------------------


def _subscriptions(session: Session, topic: EntityInfo) -> Any:
    async def create() -> None:
        values: dict[str, object] = {"RequiresSession": "true" if sessions.value else None}
        path = subscription_path(topic.path, name.value.strip())

        def ask() -> None:
            with session.access.management() as management:
                management.create(path, SUBSCRIPTION.element, new_elements(SUBSCRIPTION, values))

        await in_thread(ask)
        await refresh()

    with form_dialog("Create a subscription", "Create", create) as form:
        name = field("Name")
        sessions = switch("Sessions")
    with card():
        with ui.element("div").classes("toolbar"):
            markup(tag("h2", "Subscriptions"))
            button("Create a subscription", form.open, "add").classes("push")
        listed = markup()

    def read() -> list[dict[str, Any]]:
        with session.access.management() as management:
            entries = list(management.list(f"{topic.path}/Subscriptions"))
        return [shown_values(entry) for entry in entries]

    async def refresh() -> None:
        put(listed, _listed(topic.path, await in_thread(read)))

    return refresh


def _listed(topic: str, subscriptions: list[dict[str, Any]]) -> Html:
    if not subscriptions:
        return empty_state(
            "mark_email_unread", "No subscriptions", "Messages to this topic are dropped until it has one."
        )
    columns = [
        Column("Name", lambda each: _subscription_name(topic, each)),
        Column("Active", lambda each: number(_count(each, "activeMessageCount")), numeric=True),
        Column("Dead letters", lambda each: number(_count(each, "deadLetterMessageCount")), numeric=True),
        Column(
            "Max deliveries", lambda each: number(each.get("maxDeliveryCount")), numeric=True, narrow=False
        ),
        Column("Forwards to", lambda each: each.get("forwardTo") or "–", narrow=False),
    ]
    return table("Subscriptions", columns, subscriptions)


def _subscription_name(topic: str, each: dict[str, Any]) -> Html:
    status = str(each.get("status", "Active"))
    return join(
        link(each["name"], "entity", path=subscription_path(topic, each["name"])),
        badge(status, "warn") if status != "Active" else EMPTY,
    )


def _count(each: dict[str, Any], name: str) -> object:
    counts = each.get("countDetails")
    return counts.get(name) if isinstance(counts, dict) else None
