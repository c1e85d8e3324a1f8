"""Messaging stores: health, placement, attach, drain and retire; faults on a development server.

On a server with several brokers the page shows the brokers too. Stores cannot be changed there.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from nicegui import ui

from bendybus.errors import BrokerError
from bendybus_portal.access import in_thread
from bendybus_portal.components.charts import bar
from bendybus_portal.components.dialogs import confirm, field, form_dialog
from bendybus_portal.components.live import Live, tell, told_errors
from bendybus_portal.components.markup_element import markup
from bendybus_portal.components.stats import stat
from bendybus_portal.components.table import (
    ClickedAction,
    Column,
    action_button,
    actions_of,
    empty_state,
    pager,
    table,
)
from bendybus_portal.layout import Visit, button, card, portal_page, stores_label, title_bar
from bendybus_portal.markup import EMPTY, Html, badge, join, link, tag
from bendybus_portal.reading import PAGE
from bendybus_portal.sessions import Session
from bendybus_portal.shown import clock_time, number, plural, size

__all__: list[str] = []

_TONES = {"available": "good", "slow": "warn", "damaged": "warn", "away": "bad"}
_BROKER_TONES = {"serving": "good", "away": "bad", "silent": "bad", "gone": "neutral"}


@portal_page("/stores", lambda visit: stores_label(visit.session))
async def stores_page(visit: Visit) -> None:
    session = visit.session
    if visit.query.get("store"):
        await _one_store(visit, visit.query["store"])
        return
    several = session.rights.several_brokers
    title = stores_label(session) if several else "Messaging stores"
    title_bar(title, crumbs=[(session.rights.name, "/portal/")])
    live = Live(session)
    if several:
        await _stores_and_brokers(session, live)
        return

    async def attach() -> None:
        body = {"url": url.value.strip(), "name": name.value.strip() or None}
        await in_thread(session.access.ask, "POST", "/$stores", None, body)
        tell("The store is attached.")
        await live.refresh()

    with form_dialog("Attach a store", "Attach", attach) as form:
        url = field("URL", hint="sqlite:///PATH or postgresql://USER@HOST/DATABASE; the server must allow it")
        name = field("Name", hint="empty: the file's or the database's name")
    with ui.element("div").classes("actions"):
        button("Attach a store", form.open, "add", "primary")

    async def act(clicked: ClickedAction) -> None:
        with told_errors():
            await _act(session, clicked)
            await live.refresh()

    listed = actions_of(act)

    async def refresh() -> None:
        stores = (await in_thread(session.access.ask, "GET", "/$stores"))["stores"]
        faults: dict[str, str] = {}
        if session.rights.development:
            told = await in_thread(session.access.ask, "GET", "/$faults/stores")
            faults = {each["name"]: each["fault"] for each in told["stores"]}
        listed.put(_listed(stores, faults))

    live.add(refresh)
    await live.start()


async def _stores_and_brokers(session: Session, live: Live) -> None:
    with card("Brokers"):
        brokers = markup()
    with card("Messaging stores"):
        stores = markup()

    async def refresh() -> None:
        told = await in_thread(session.access.ask, "GET", "/$brokers")
        brokers.put(_listed_brokers(told["brokers"]))
        stores.put(_listed((await in_thread(session.access.ask, "GET", "/$stores"))["stores"], {}))

    live.add(refresh)
    await live.start()


def _listed_brokers(brokers: list[dict[str, Any]]) -> Html:
    columns = [
        Column("Broker", lambda each: tag("strong", each["name"])),
        Column("State", _broker_state),
        Column("Address", lambda each: each["address"] or "this machine", narrow=False),
        Column("Version", lambda each: str(each["version"]), narrow=False),
        Column("Stores", lambda each: ", ".join(each["stores"]) or "none"),
        Column("Partitions", lambda each: number(each["partitions"]), numeric=True),
    ]
    return table("Brokers", columns, brokers)


def _broker_state(each: dict[str, Any]) -> Html:
    shown = badge(each["state"].capitalize(), _BROKER_TONES.get(each["state"], "warn"))
    return join(shown, badge("Leads")) if each["leads"] else shown


async def _act(session: Session, clicked: ClickedAction) -> None:
    name = clicked.subject
    path, fault = f"/$stores/{name}", f"/$faults/stores/{name}"

    async def ask(method: str, url: str, body: object = None, query: Any = None) -> None:
        await in_thread(session.access.ask, method, url, query, body)

    match clicked.action:
        case "drain":
            text = f"All partitions in {name} are moved to the other stores. They stay available."
            if await confirm(f"Drain {name}?", text, "Drain", danger=False):
                await ask("PUT", path, {"draining": True})
        case "keep":
            await ask("PUT", path, {"draining": False})
        case "retire":
            if await confirm(f"Retire {name}?", "An empty store is detached for good.", "Retire"):
                await ask("DELETE", path)
        case "forget":
            text = "The store is given up with every message in it. This cannot be undone."
            if await confirm(f"Forget {name}?", text, "Forget it"):
                await ask("DELETE", path, query={"forget": "true"})
        case "pause" | "slow" | "fail" as kind:
            body: dict[str, object] = {"fault": kind}
            await ask("PUT", fault, body | ({"delayMs": 500} if kind == "slow" else {}))
        case "heal":
            await ask("DELETE", fault)
        case other:
            raise BrokerError(f"'{quote(other)}' is not an action of a store.")


def _listed(stores: list[dict[str, Any]], faults: dict[str, str]) -> Html:
    held = sum(each["bytes"] for each in stores) or 1
    # With several brokers stores cannot be changed.
    several = any("broker" in each for each in stores)
    columns = [
        Column("Store", lambda each: link(each["name"], "stores", store=each["name"])),
        *([Column("Broker", lambda each: each["broker"] or "none")] if several else []),
        Column("Kind", lambda each: str(each["kind"]), narrow=False),
        Column("State", _state),
        Column("Since (UTC)", lambda each: clock_time(each["since"]), narrow=False),
        Column("Partitions", lambda each: number(each["partitions"]), numeric=True),
        Column("Size", lambda each: _size(each, held), numeric=True, narrow=False),
        *([] if several else [Column("Actions", _actions)]),
    ]
    if faults:
        columns.append(Column("Fault", lambda each: _faults(each["name"], faults.get(each["name"], "none"))))
    return table("Messaging stores", columns, stores)


# -- one store ----------------------------------------------------------------------


async def _one_store(visit: Visit, name: str) -> None:
    """What it keeps: the partitions of each entity."""
    session, skip = visit.session, visit.number("skip")
    above = stores_label(session) if session.rights.several_brokers else "Messaging stores"
    title_bar(name, crumbs=[(session.rights.name, "/portal/"), (above, "/portal/stores")])
    live = Live(session)
    facts = markup(classes="stats")
    placed = markup()

    async def refresh() -> None:
        told = await in_thread(session.access.ask, "GET", f"/$stores/{name}", {"skip": skip, "top": PAGE})
        facts.put(
            join(
                stat(
                    "State", told["state"].capitalize(), told.get("reason", ""), _TONES.get(told["state"], "")
                ),
                *([stat("Broker", told["broker"] or "none")] if "broker" in told else []),
                stat("Kind", told["kind"] or "–"),
                stat("Partitions", number(told["partitions"])),
                stat("Size", size(told["bytes"])),
            )
        )
        placed.put(_placement(told, skip))

    live.add(refresh)
    await live.start()


def _placement(told: dict[str, Any], skip: int) -> Html:
    if not told["placement"]:
        advice = "New entities, and stores that are drained, bring partitions here."
        return empty_state("storage", "Nothing is kept here", advice)
    columns = [
        Column("Entity", lambda each: link(each["entity"], "entity", path=each["entity"])),
        Column(
            "Partitions", lambda each: tag("span", *map(_number_badge, each["partitions"]), class_="numbers")
        ),
    ]
    return join(
        table("What the store keeps", columns, told["placement"]),
        pager("stores", skip, PAGE, told["entityCount"], store=told["name"]),
    )


def _number_badge(partition: int) -> Html:
    return badge(str(partition))


def _state(each: dict[str, Any]) -> Html:
    shown = badge(each["state"].capitalize(), _TONES.get(each["state"], "neutral"))
    if each["draining"]:
        done, total = each.get("moved", 0), each.get("moved", 0) + each["partitions"]
        progress = bar(done / total if total else 1.0, f"{done} of {total} partitions moved")
        shown = join(shown, badge("Draining", "warn"), progress)
        if each.get("moving"):
            text = f"{each['moving']}: {plural(each.get('copied', 0), 'message')} copied"
            shown = join(shown, tag("div", text, class_="soft"))
    reason = each.get("problem") or each.get("reason")
    return join(shown, tag("div", reason, class_="soft") if reason else EMPTY)


def _size(each: dict[str, Any], held: int) -> Html:
    share = each["bytes"] / held
    return tag("span", size(each["bytes"]), bar(share, f"{share:.0%} of all bytes"), class_="size-cell")


def _actions(each: dict[str, Any]) -> Html:
    name, shown = each["name"], EMPTY
    if each["draining"]:
        shown = join(shown, action_button("Use again", "keep", name))
        if not each["partitions"]:
            shown = join(shown, action_button("Retire…", "retire", name, tone="danger"))
    elif each["state"] == "away":
        shown = join(shown, action_button("Forget…", "forget", name, tone="danger"))
    else:
        shown = join(shown, action_button("Drain…", "drain", name))
    return tag("span", shown, class_="row-actions")


def _faults(name: str, current: str) -> Html:
    if current != "none":
        return join(badge(current, "bad"), action_button("Heal", "heal", name))
    return tag(
        "span",
        action_button("Pause", "pause", name),
        action_button("Slow", "slow", name),
        action_button("Fail", "fail", name),
        class_="row-actions",
    )
