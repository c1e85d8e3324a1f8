"""What all pages of one entity share: its title, its tabs, and which of them this key may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bendybus_portal.access import in_thread
from bendybus_portal.components.markup_element import markup
from bendybus_portal.layout import Visit, title_bar
from bendybus_portal.markup import EMPTY, Html, badge, icon, join, page_url, tag
from bendybus_portal.reading import EntityInfo, describe, split_entity
from bendybus_portal.sessions import Session
from bendybus_portal.shown import number

__all__ = ["EntityTab", "entity_frame", "entity_title"]

SYMBOLS: Final = {"queue": "move_to_inbox", "topic": "campaign", "subscription": "mark_email_unread"}


@dataclass(frozen=True, slots=True)
class EntityTab:
    page: str
    label: str
    symbol: str
    count: int | None = None


def entity_title(visit: Visit) -> str:
    return visit.query.get("path", "")


async def entity_frame(visit: Visit, page: str) -> EntityInfo:
    """Title and tabs; `EntityNotFound` if there is no such entity."""
    session, path = visit.session, visit.query.get("path", "").strip("/")
    info = await in_thread(describe, session.access, session.rights, path)
    topic, subscription = split_entity(info.path)
    crumbs = [(session.rights.name, "/portal/")]
    if subscription is not None:
        crumbs.append((topic, page_url("entity", path=topic)))
    status = info.values.get("status", "Active")
    marks = join(
        badge(info.kind.capitalize(), symbol=SYMBOLS.get(info.kind, "")),
        badge(str(status), "warn") if status != "Active" else EMPTY,
        badge("Sessions") if info.sessions else EMPTY,
    )
    title_bar(subscription or info.path, crumbs=crumbs, beside=marks)
    markup(_tabs(info, page, _offered(session, info)))
    return info


def _offered(session: Session, info: EntityInfo) -> list[EntityTab]:
    """What the key may not do is not offered."""
    rights, counts = session.rights, info.counts
    tabs = [EntityTab("entity", "Overview", "insights")]
    if info.kind == "topic":
        if rights.send:
            tabs.append(EntityTab("messages", "Send", "send"))
    else:
        if rights.listen or rights.send:
            tabs.append(EntityTab("messages", "Messages", "mail_outline", counts.get("activeMessageCount")))
        if rights.listen:
            letters = counts.get("deadLetterMessageCount")
            tabs.append(EntityTab("dead-letters", "Dead letters", "report_gmailerrorred", letters))
        if rights.listen and (info.sessions or not info.values):
            tabs.append(EntityTab("sessions", "Sessions", "forum"))
    if rights.manage:
        if info.kind == "subscription":
            tabs.append(EntityTab("rules", "Rules", "filter_alt"))
        tabs.append(EntityTab("settings", "Settings", "tune"))
        if rights.extensions and info.kind != "subscription":
            tabs.append(EntityTab("policies", "Access", "vpn_key"))
    return tabs


def _tabs(info: EntityInfo, page: str, tabs: list[EntityTab]) -> Html:
    links = [
        tag(
            "a",
            icon(each.symbol),
            each.label,
            tag("span", number(each.count), class_="count") if each.count else EMPTY,
            href=page_url(each.page, path=info.path),
            class_="here" if each.page == page else None,
            aria_current="page" if each.page == page else None,
        )
        for each in tabs
    ]
    return tag("nav", *links, class_="tabs", aria_label="Parts of the entity")
