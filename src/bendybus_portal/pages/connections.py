"""Connections: who is connected, with which links, credit and rates; close one."""

from __future__ import annotations

from time import monotonic
from typing import Any

from bendybus_portal.access import in_thread
from bendybus_portal.components.dialogs import confirm
from bendybus_portal.components.live import Live, tell, told_errors
from bendybus_portal.components.table import (
    ClickedAction,
    Column,
    action_button,
    actions_of,
    empty_state,
    pager,
    table,
)
from bendybus_portal.layout import Visit, portal_page, title_bar
from bendybus_portal.markup import EMPTY, Html, badge, icon, join, link, tag
from bendybus_portal.reading import PAGE
from bendybus_portal.series import Counters
from bendybus_portal.shown import age, number, plural, rate

__all__: list[str] = []

LINKS_SHOWN = 5


@portal_page("/connections", lambda visit: "Connections")
async def connections_page(visit: Visit) -> None:
    session = visit.session
    title_bar("Connections", crumbs=[(session.rights.name, "/portal/")])
    counters, skip = Counters(), visit.number("skip")
    live = Live(session)

    async def act(clicked: ClickedAction) -> None:
        text = "The client is told that an operator closed the connection. It may connect again."
        if clicked.action == "close" and await confirm("Close the connection?", text, "Close"):
            with told_errors():
                await in_thread(session.access.ask, "DELETE", f"/$connections/{clicked.subject}")
                tell("The connection is closed.")
                await live.refresh()

    listed = actions_of(act)

    async def refresh() -> None:
        told = await in_thread(session.access.ask, "GET", "/$connections", {"skip": skip, "top": PAGE})
        listed.put(_listed(told, monotonic(), counters, skip))

    live.add(refresh)
    await live.start()


def _listed(told: dict[str, Any], at: float, counters: Counters, skip: int) -> Html:
    connections, away = told["connections"], told.get("unreachableBrokers")
    remark = EMPTY
    if away:
        text = f"Broker {', '.join(away)} is away. Its connections are not known."
        remark = tag("div", icon("warning_amber"), tag("span", text), class_="banner bad", id="outage")
    if not connections:
        return remark or empty_state(
            "cable", "Nobody is connected", "Give an application the connection string of a policy."
        )
    columns = [
        Column("Client", _client),
        *([Column("Broker", lambda each: str(each["broker"]))] if "broker" in connections[0] else []),
        Column("Key", lambda each: tag("span", each["key"], class_="clip"), narrow=False),
        Column("Since", lambda each: age(told["at"] - each["since"]), numeric=True, narrow=False),
        Column("Links", lambda each: _links(each, at, counters)),
        Column("Actions", lambda each: action_button("Close…", "close", each["id"], tone="danger")),
    ]
    return join(
        remark,
        tag("p", plural(told["count"], "AMQP connection"), class_="soft above"),
        table("Connections", columns, connections),
        pager("connections", skip, PAGE, told["count"]),
    )


def _client(each: dict[str, Any]) -> Html:
    product = tag("span", each["product"] or each["container"] or "unknown client", class_="clip")
    return tag("div", tag("strong", each["peer"], class_="num"), tag("div", product, class_="soft"))


def _links(each: dict[str, Any], at: float, counters: Counters) -> Html:
    shown = EMPTY
    # Every client has links for its tokens.
    links = [one for one in each["links"] if one["entity"] != "$cbs"]
    for one in links[:LINKS_SHOWN]:
        speed = counters.rate(f"{each['id']}:{one['name']}", at, one["messages"])
        sends = one["role"] == "sender"
        entity = one["entity"].partition("/$")[0]
        shown = join(
            shown,
            tag(
                "li",
                icon("north_east" if sends else "south_west"),
                link(one["entity"], "entity", path=entity)
                if entity and not entity.startswith("$")
                else one["entity"],
                badge("sends" if sends else f"receives, credit {number(one['credit'])}"),
                tag("span", f"{rate(speed)} / s", class_="soft num"),
            ),
        )
    more = each["linkCount"] - len(each["links"]) + len(links[LINKS_SHOWN:])
    rest = tag("li", f"and {number(more)} more", class_="soft") if more > 0 else EMPTY
    return tag("ul", shown, rest, class_="links") if shown else tag("span", "none", class_="soft")
