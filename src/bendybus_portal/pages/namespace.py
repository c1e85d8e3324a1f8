"""The namespace: all entities at a glance, with search, sort and create."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Any

from nicegui import ui

from bendybus_portal.access import in_thread
from bendybus_portal.components.charts import bar
from bendybus_portal.components.create_entity import create_entity_dialog
from bendybus_portal.components.import_export import export, import_dialog
from bendybus_portal.components.live import Live, go_to
from bendybus_portal.components.markup_element import markup
from bendybus_portal.components.stats import stat
from bendybus_portal.components.table import Column, empty_state, pager, table
from bendybus_portal.layout import Visit, button, portal_page, title_bar
from bendybus_portal.markup import EMPTY, Html, badge, icon, join, link, page_url, tag
from bendybus_portal.reading import PAGE, Overview, overview
from bendybus_portal.series import Counters
from bendybus_portal.shown import number, percent, rate, size

__all__: list[str] = []


@portal_page("/", lambda visit: visit.session.rights.name)
async def namespace_page(visit: Visit) -> None:
    session = visit.session
    rights = session.rights
    tier = badge(rights.tier.capitalize()) if rights.tier else EMPTY
    title_bar(rights.name, beside=tier)
    if not rights.listen or session.entity:
        _open_by_name(session.entity or "")
        return
    await _entities(visit)


def _open_by_name(entity: str) -> None:
    """For a key that may not see the list."""
    with ui.element("section").classes("card narrow"):
        markup(tag("h2", "Open a queue or topic"))
        markup(
            tag(
                "p",
                "This key cannot list the entities of the namespace. Enter the name of one.",
                class_="soft",
            )
        )
        name = ui.input("Name", value=entity).props("outlined dense stack-label").classes("field search")

        def go() -> None:
            if name.value.strip():
                go_to(page_url("entity", path=name.value.strip()))

        name.on("keydown.enter", go)
        button("Open", go, "arrow_forward", "primary")


async def _entities(visit: Visit) -> None:
    session, skip = visit.session, visit.number("skip")
    sort, descending = visit.query.get("sort", "name"), visit.query.get("descending") == "true"
    search = visit.query.get("search", "")
    counters = Counters()
    cards = markup(classes="stats")
    with ui.element("div").classes("toolbar"):
        field = ui.input(placeholder="Search", value=search)
        field.props('outlined dense clearable type="search" aria-label="Search entities" debounce="250"')
        field.classes("search")
        with field.add_slot("prepend"):
            ui.icon("search")
        if session.rights.manage:
            form = create_entity_dialog(session)
            button("Import…", import_dialog(session).open, "upload").classes("push")
            button("Export", partial(export, session), "download")
            button("Create", form.open, "add", "primary")
    listed = markup()
    live = Live(session)

    async def refresh() -> None:
        wanted = field.value or ""
        found = await in_thread(
            overview,
            session.access,
            session.rights,
            wanted,
            sort,
            descending,
            skip if wanted == search else 0,
        )
        at = monotonic()
        rates = {each["name"]: counters.rate(each["name"], at, each["arrived"]) for each in found.entities}
        cards.put(_cards(found))
        listed.put(_listed(found, rates, wanted, sort, descending, skip))

    async def searched() -> None:
        ui.navigate.history.replace(page_url("", search=field.value, sort=_unless(sort, "name")))
        await live.refresh()

    field.on_value_change(searched)
    live.add(refresh)
    await live.start()


def _unless(value: str, default: str) -> str | None:
    return None if value == default else value


def _cards(found: Overview) -> Html:
    active = sum(each["active"] for each in found.entities)
    letters = sum(each["deadLetters"] for each in found.entities)
    limited = sum(bool(each["limited"]) for each in found.entities)
    whole = len(found.entities) == found.queues + found.topics
    scope = "" if whole else "on this page"
    health = (
        stat("Availability", "Limited", f"{number(limited)} with partitions away", "bad")
        if limited
        else stat("Availability", "Available", "every partition answers" if whole else scope, "good")
    )
    return join(
        stat("Queues", number(found.queues), ""),
        stat("Topics", number(found.topics), ""),
        stat("Active messages", number(active), scope),
        stat("Dead letters", number(letters), scope, "warn" if letters else ""),
        health,
    )


def _listed(
    found: Overview, rates: dict[str, float | None], search: str, sort: str, descending: bool, skip: int
) -> Html:
    if not found.entities:
        if search:
            return empty_state(
                "search_off", "Nothing found", f"No queue or topic has “{search}” in its name."
            )
        return empty_state(
            "inbox",
            "No queues or topics yet",
            "Create one here, or let an application create it with any Azure SDK.",
        )
    columns = [
        Column("Name", _name, sort="name"),
        Column("Active", lambda each: number(each["active"]), numeric=True, sort="active"),
        Column("Dead letters", _letters, numeric=True, sort="deadLetters"),
        Column(
            "Scheduled", lambda each: number(each["scheduled"]), numeric=True, sort="scheduled", narrow=False
        ),
        Column("Arriving / s", lambda each: rate(rates.get(each["name"])), numeric=True, narrow=False),
        Column("Size", _size, numeric=True, sort="sizeBytes", narrow=False),
        Column("Partitions", _partitions, narrow=False),
    ]
    return join(
        table(
            "Queues and topics",
            columns,
            found.entities,
            sorted_by=sort,
            descending=descending,
            sort_url=partial(_sort_url, search),
        ),
        pager(
            "",
            skip,
            PAGE,
            found.matching,
            search=search,
            sort=_unless(sort, "name"),
            descending="true" if descending else None,
        ),
    )


def _sort_url(search: str, sort: str, descending: bool) -> str:
    return page_url("", search=search, sort=_unless(sort, "name"), descending="true" if descending else None)


def _name(each: dict[str, Any]) -> Html:
    topic = each["kind"] == "topic"
    kind = "Topic" if topic else "Queue"
    marks = EMPTY
    if each["status"] != "Active":
        marks = Html(marks + badge(each["status"], "warn"))
    if each.get("sessions"):
        marks = Html(marks + badge("sessions"))
    if topic:
        marks = Html(marks + badge(f"{number(each['subscriptions'])} subscriptions"))
    return tag(
        "span",
        tag(
            "span",
            tag("span", icon("campaign" if topic else "move_to_inbox"), class_="kind", title=kind),
            link(each["name"], "entity", path=each["name"]),
            class_="entity-link",
        ),
        marks,
        class_="entity-name",
    )


def _letters(each: dict[str, Any]) -> Html | str:
    count = each["deadLetters"]
    if not count:
        return "0"
    if each["kind"] == "topic":
        return tag("strong", number(count), class_="warn-text")
    return tag("a", number(count), href=page_url("dead-letters", path=each["name"]), class_="warn-text")


def _size(each: dict[str, Any]) -> Html:
    share = each["sizeBytes"] / each["maxSizeBytes"] if each["maxSizeBytes"] else 0.0
    tone = "bad" if share > 0.9 else "warn" if share > 0.7 else ""
    label = f"{percent(share)} of {size(each['maxSizeBytes'])}"
    return tag("span", size(each["sizeBytes"]), bar(share, label, tone), class_="size-cell", title=label)


def _partitions(each: dict[str, Any]) -> Html | str:
    if each["partitions"] is None:
        return badge("Limited", "bad", "error_outline") if each["limited"] else "–"
    text = (
        f"{each['available']} of {each['partitions']}"
        if each["available"] < each["partitions"]
        else (str(each["partitions"]))
    )
    if each["available"] < each["partitions"]:
        return badge(text, "bad", "error_outline")
    return badge(text, "warn" if each["limited"] else "good", "check_circle_outline")
