"""An entity: counts, rates and ages over time, and each of its partitions; a topic with its subscriptions."""

from __future__ import annotations

from time import monotonic
from typing import Any, Final

from nicegui import ui

from bendybus.management.properties import SUBSCRIPTION, new_elements, shown_values, subscription_path
from bendybus_portal.access import in_thread
from bendybus_portal.components.charts import line_chart
from bendybus_portal.components.dialogs import field, form_dialog, switch
from bendybus_portal.components.entity_frame import entity_frame, entity_title
from bendybus_portal.components.live import Live
from bendybus_portal.components.markup_element import Markup, markup
from bendybus_portal.components.partition_panel import partition_panel
from bendybus_portal.components.stats import stat
from bendybus_portal.components.table import Column, empty_state, pager, table
from bendybus_portal.history import EntityHistory
from bendybus_portal.layout import Visit, button, card, portal_page
from bendybus_portal.markup import EMPTY, Html, badge, join, link, tag
from bendybus_portal.reading import PAGE, EntityInfo, describe, partitions
from bendybus_portal.sessions import Session
from bendybus_portal.shown import number, percent, plural, size

__all__: list[str] = []

# Charts count seconds from here: small numbers are short.
STARTED: Final = monotonic()


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
    live, skip = Live(session), visit.number("skip")
    cards = markup(classes="stats")
    if session.rights.extensions:
        charts = markup(classes="chart-row")
        listed = _subscriptions(session, info, live) if info.kind == "topic" else None
        with card("Partitions"):
            panel = markup()
        history = session.memory.setdefault(f"history:{info.path}", EntityHistory())

        async def refresh_partitions() -> None:
            told = await in_thread(partitions, session.access, info.path, skip)
            at = monotonic() - STARTED
            history.add(at, told)
            cards.put(_cards(info, told))
            charts.put(_charts(history, at, topic=info.kind == "topic"))
            panel.put(partition_panel(told, history, session.access.namespace.netloc))
            if listed is not None:
                listed.put(_listed(info.path, told["subscriptions"], skip, told["subscriptionCount"]))

        live.add(refresh_partitions)
    else:
        listed = _subscriptions(session, info, live) if info.kind == "topic" else None

        async def refresh_counts() -> None:
            described = await in_thread(describe, session.access, session.rights, info.path)
            cards.put(_cards_of_description(described))
            if listed is not None:
                found = await in_thread(_subscriptions_elsewhere, session, info.path)
                listed.put(_listed(info.path, found, 0, len(found)))

        live.add(refresh_counts)
    await live.start()


def _cards(info: EntityInfo, told: dict[str, Any]) -> Html:
    partitions, topic = told["partitions"], info.kind == "topic"

    def total(name: str) -> int | None:
        """A topic's are those of its subscriptions, and may be missing."""
        return told.get(name) if topic else sum(each.get(name) or 0 for each in partitions)

    away = sum(not each["available"] for each in partitions)
    held, most = total("sizeBytes"), int(str(info.values.get("maxSizeInMegabytes") or 0)) * 1024 * 1024
    letters, scheduled = total("deadLetters"), sum(each.get("scheduled") or 0 for each in partitions)
    locked = "in all subscriptions" if topic else f"{number(total('locked'))} locked"
    return join(
        stat("Active", number(total("active")), locked),
        stat("Dead letters", number(letters), "", "warn" if letters else ""),
        stat("Scheduled", number(scheduled)),
        EMPTY if topic else stat("Deferred", number(total("deferred"))),
        stat(
            "Size", size(held), f"{percent(held / most)} of {size(most)}" if most and held is not None else ""
        ),
        stat("Availability", "Limited", f"{away} of {len(partitions)} partitions away", "bad")
        if away
        else stat("Availability", "Available", plural(len(partitions), "partition"), "good"),
    )


def _cards_of_description(info: EntityInfo) -> Html:
    counts = info.counts
    limited = info.values.get("entityAvailabilityStatus") == "Limited"
    return join(
        stat("Active", number(counts.get("activeMessageCount", 0))),
        stat("Dead letters", number(counts.get("deadLetterMessageCount", 0))),
        stat("Scheduled", number(counts.get("scheduledMessageCount", 0))),
        stat("Size", size(info.values.get("sizeInBytes", 0))),
        stat("Availability", "Limited" if limited else "Available", "", "bad" if limited else "good"),
    )


def _charts(history: EntityHistory, at: float, *, topic: bool) -> Html:
    if topic:
        return line_chart("Messages", "/ s", [("Arriving", history.arriving)], at)
    return join(
        line_chart("Messages", "/ s", [("Arriving", history.arriving), ("Leaving", history.leaving)], at),
        line_chart("Waiting messages", "", [("Active", history.depth)], at),
        line_chart("Latency", "s", [("Oldest", history.oldest_s), ("Mean wait", history.wait_s)], at),
    )


# -- subscriptions ------------------------------------------------------------------


def _subscriptions(session: Session, topic: EntityInfo, live: Live) -> Markup:
    """The card of a topic's subscriptions. Returns where they are listed."""

    async def create() -> None:
        values: dict[str, object] = {"RequiresSession": "true" if sessions.value else None}
        path = subscription_path(topic.path, name.value.strip())

        def ask() -> None:
            with session.access.management() as management:
                management.create(path, SUBSCRIPTION.element, new_elements(SUBSCRIPTION, values))

        await in_thread(ask)
        await live.refresh()

    with card():
        with ui.element("div").classes("toolbar"):
            markup(tag("h2", "Subscriptions"))
            if session.rights.manage:
                with form_dialog("Create a subscription", "Create", create) as form:
                    name = field("Name")
                    sessions = switch("Sessions")
                button("Create a subscription", form.open, "add").classes("push")
        return markup()


def _subscriptions_elsewhere(session: Session, topic: str) -> list[dict[str, Any]]:
    """From the ATOM API, which Azure has too."""
    with session.access.management() as management:
        entries = [shown_values(entry) for entry in management.list(f"{topic}/Subscriptions")]
    counts = [counted if isinstance(counted := each.get("countDetails"), dict) else {} for each in entries]
    return [
        {
            **each,
            "active": counted.get("activeMessageCount"),
            "deadLetters": counted.get("deadLetterMessageCount"),
        }
        for each, counted in zip(entries, counts, strict=True)
    ]


def _listed(topic: str, subscriptions: list[dict[str, Any]], skip: int, total: int) -> Html:
    if not subscriptions:
        return empty_state(
            "mark_email_unread", "No subscriptions", "Messages to this topic are dropped until it has one."
        )
    columns = [
        Column("Name", lambda each: _subscription_name(topic, each)),
        Column("Active", lambda each: number(each["active"]), numeric=True),
        Column("Dead letters", lambda each: number(each["deadLetters"]), numeric=True),
        Column(
            "Max deliveries", lambda each: number(each.get("maxDeliveryCount")), numeric=True, narrow=False
        ),
        Column("Forwards to", lambda each: each.get("forwardTo") or "–", narrow=False),
    ]
    return join(
        table("Subscriptions", columns, subscriptions), pager("entity", skip, PAGE, total, path=topic)
    )


def _subscription_name(topic: str, each: dict[str, Any]) -> Html:
    status = str(each.get("status", "Active"))
    return join(
        link(each["name"], "entity", path=subscription_path(topic, each["name"])),
        badge(status, "warn") if status != "Active" else EMPTY,
        badge("sessions") if each.get("sessions") or each.get("requiresSession") else EMPTY,
    )
