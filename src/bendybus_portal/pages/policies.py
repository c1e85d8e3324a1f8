"""Shared access policies of a namespace or an entity: list, create, rotate keys, copy connection strings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote

from nicegui import ui

from bendybus.auth.connection_strings import local_connection_string
from bendybus.errors import ArgumentError
from bendybus_portal.access import in_thread
from bendybus_portal.components.dialogs import FormDialog, choice, confirm, field, form_dialog, switch
from bendybus_portal.components.entity_frame import entity_frame
from bendybus_portal.components.live import tell, told_errors
from bendybus_portal.components.markup_element import markup
from bendybus_portal.components.table import (
    ClickedAction,
    Column,
    action_button,
    actions_of,
    empty_state,
    table,
)
from bendybus_portal.layout import Visit, button, portal_page, title_bar
from bendybus_portal.markup import Html, badge, tag
from bendybus_portal.reading import split_entity
from bendybus_portal.sessions import Session

__all__: list[str] = []

RULES = "$authorizationRules"
RIGHTS = ("Send", "Listen", "Manage")


@portal_page("/policies", lambda visit: "Access policies")
async def policies_page(visit: Visit) -> None:
    session, entity = visit.session, ""
    if visit.query.get("path"):
        info = await entity_frame(visit, "policies")
        # A subscription has the policies of its topic.
        entity = split_entity(info.path)[0]
    else:
        title_bar("Shared access policies", crumbs=[(session.rights.name, "/portal/")])
    rules = f"/{entity}/{RULES}" if entity else f"/{RULES}"

    async def create() -> None:
        rights = [right for right, box in boxes.items() if box.value]
        if not name.value.strip() or not rights:
            raise ArgumentError("Give the policy a name and at least one right.")
        # "Manage" includes the others, and Service Bus wants all three to be named.
        wanted = list(RIGHTS) if "Manage" in rights else rights
        path = f"{rules}/{quote(name.value.strip(), safe='')}"
        await in_thread(session.access.ask, "PUT", path, None, {"rights": wanted})
        await refresh()

    with form_dialog("Create a policy", "Create", create) as form:
        name = field("Name")
        boxes = {right: switch(right, right == "Listen") for right in RIGHTS}
    with ui.element("div").classes("actions"):
        button("Create a policy", form.open, "add", "primary")

    async def act(clicked: ClickedAction) -> None:
        with told_errors():
            await _act(session, clicked, rules, entity)
            await refresh()

    listed = actions_of(act)

    async def refresh() -> None:
        told = await in_thread(session.access.ask, "GET", rules)
        listed.put(_listed(told["rules"]))

    with told_errors():
        await refresh()


async def _act(session: Session, clicked: ClickedAction, rules: str, entity: str) -> None:
    name, path = clicked.subject, f"{rules}/{clicked.subject}"
    match clicked.action:
        case "copy":
            rule = await in_thread(session.access.ask, "GET", path)
            target = session.access.namespace
            text = local_connection_string(
                target.host, target.port or 5671, str(rule["primaryKey"]), name, tls=target.tls
            )
            text += f";EntityPath={entity}" if entity else ""
            # It goes to the clipboard alone: no element of the page ever holds it.
            ui.clipboard.write(text)
            tell(f"The connection string of {name} is on your clipboard.")
        case "key":
            _new_key_dialog(session, name, path).open()
        case "delete":
            text = f"Applications that use {name} are refused from now on."
            if await confirm(f"Delete {name}?", text, "Delete"):
                again = await in_thread(_delete, session, path)
                session.undos.offer(f"The policy {name} is deleted.", again)


def _new_key_dialog(session: Session, name: str, path: str) -> FormDialog:
    async def make() -> None:
        which = str(chosen.value)
        await in_thread(session.access.ask, "POST", f"{path}/regenerateKey", None, {"which": which})
        tell(f"{name} has a new {which} key.")

    with form_dialog(f"New key for {name}", "Make a new key", make) as form:
        text = "Applications that use the old key are refused until they get the new one."
        markup(tag("p", text, " Move them to the other key first."))
        chosen = choice("Key", {"primary": "Primary", "secondary": "Secondary"}, "primary")
    return form


def _delete(session: Session, path: str) -> Callable[[], object]:
    """Returns what creates it again, with the same keys."""
    rule = session.access.ask("GET", path)
    with session.access.management() as management:
        management.delete(path.lstrip("/"))
    kept = {name: rule[name] for name in ("rights", "primaryKey", "secondaryKey")}
    return partial(session.access.ask, "PUT", path, None, kept)


def _listed(rules: list[dict[str, Any]]) -> Html:
    if not rules:
        advice = "The policies of the namespace open it. A policy of its own opens this entity alone."
        return empty_state("vpn_key", "No policies", advice)
    columns = [
        Column("Policy", lambda each: tag("strong", each["name"])),
        Column("Rights", lambda each: tag("span", *map(badge, each["rights"]), class_="badges")),
        Column("Changed (UTC)", _changed, narrow=False),
        Column("Actions", _actions),
    ]
    return table("Shared access policies", columns, rules)


def _changed(each: dict[str, Any]) -> Html:
    return tag("span", str(each["modifiedAt"])[:16].replace("T", " "), class_="nowrap num")


def _actions(each: dict[str, Any]) -> Html:
    name = each["name"]
    root = name == "RootManageSharedAccessKey"
    return tag(
        "span",
        action_button("Copy connection string", "copy", name, "content_copy"),
        action_button("New key…", "key", name, "autorenew"),
        None if root else action_button("Delete…", "delete", name, tone="danger"),
        class_="row-actions",
    )
