"""Rules of a subscription: list, delete, and a form that checks SQL as it is typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from nicegui import ui

from bendybus.atom import CORRELATION_ELEMENTS
from bendybus.client import ReceivedMessage
from bendybus.errors import ArgumentError, BrokerError
from bendybus.management.filter_rules import (
    RULE_DESCRIPTION,
    correlation_elements,
    rule_elements,
    shown_rule,
    sql_elements,
)
from bendybus.management.properties import shown_name
from bendybus_portal.access import in_thread
from bendybus_portal.components.dialogs import choice, confirm, field, form_dialog
from bendybus_portal.components.entity_frame import entity_frame, entity_title
from bendybus_portal.components.live import told_errors
from bendybus_portal.components.markup_element import markup
from bendybus_portal.components.table import (
    ClickedAction,
    Column,
    action_button,
    actions_of,
    empty_state,
    table,
)
from bendybus_portal.filter_check import check_action, check_filter, recent_messages
from bendybus_portal.layout import Visit, button, portal_page
from bendybus_portal.markup import Html, icon, join, tag
from bendybus_portal.messages import parse_properties
from bendybus_portal.reading import EntityInfo, split_entity
from bendybus_portal.shown import plural

__all__: list[str] = []

KINDS = {
    "SqlFilter": "SQL",
    "CorrelationFilter": "Correlation",
    "TrueFilter": "Everything",
    "FalseFilter": "Nothing",
}
_FIELDS = {
    "correlation_id": "Correlation id",
    "message_id": "Message id",
    "label": "Subject",
    "to": "To",
    "reply_to": "Reply to",
    "session_id": "Session id",
    "reply_to_session_id": "Reply to session id",
    "content_type": "Content type",
}


@portal_page("/rules", lambda visit: f"Rules of {entity_title(visit)}")
async def rules_page(visit: Visit) -> None:
    info = await entity_frame(visit, "rules")
    await _Rules(visit, info).build()


class _Rules:
    def __init__(self, visit: Visit, info: EntityInfo) -> None:
        self._session = visit.session
        self._path = info.path
        self._topic = split_entity(info.path)[0]
        self._recent: list[ReceivedMessage] = []

    async def build(self) -> None:
        self._build_form()
        with ui.element("div").classes("actions"):
            button("Add a rule", self._open, "add", "primary")
        self._listed = actions_of(self._act)
        with told_errors():
            await self.refresh()

    async def refresh(self) -> None:
        def read() -> list[dict[str, object]]:
            with self._session.access.management() as management:
                return [shown_rule(entry) for entry in management.list(f"{self._path}/Rules")]

        self._listed.put(_listed(await in_thread(read)))

    async def _act(self, clicked: ClickedAction) -> None:
        text = f"The rule “{clicked.subject}” will no longer select messages for this subscription."
        if clicked.action != "delete" or not await confirm("Delete the rule?", text, "Delete"):
            return
        name, path = clicked.subject, f"{self._path}/Rules/{clicked.subject}"

        def delete() -> dict[str, Any]:
            with self._session.access.management() as management:
                rule = shown_rule(management.get(path))
                management.delete(path)
                return rule

        def create(rule: dict[str, Any]) -> None:
            with self._session.access.management() as management:
                management.create(path, RULE_DESCRIPTION, list(elements_of(rule)))

        with told_errors():
            deleted = await in_thread(delete)
            self._session.undos.offer(f"The rule “{name}” is deleted.", partial(create, deleted))
            await self.refresh()

    # -- the form -----------------------------------------------------------------

    def _build_form(self) -> None:
        with form_dialog("Add a rule", "Add", self._add) as self._form:
            self._name = field("Name")
            self._kind = choice("Filter", KINDS, "SqlFilter")
            self._sql = field("SQL expression", area=True, hint="as amount > 100 AND sys.Label = 'order'")
            self._sql.classes("mono").props("debounce=200")
            self._fields = {name: field(label) for name, label in _FIELDS.items()}
            self._properties = field("Properties", area=True, hint="one a line: name=text, or name:=12")
            self._action = field("Action", hint="as SET priority = 1; empty: none")
            self._action.classes("mono").props("debounce=200")
            self._checked = markup(classes="checked").props('role="status" aria-live="polite"')
        for each in (self._kind, self._sql, self._action):
            each.on_value_change(self._check)
        self._check()

    async def _open(self) -> None:
        self._form.open()
        try:
            self._recent = await in_thread(self._read_recent)
        except BrokerError:
            # A key with Manage has Listen too; without messages the SQL is still checked.
            self._recent = []
        self._check()

    def _read_recent(self) -> list[ReceivedMessage]:
        with self._session.access.management() as management:
            names = [entry.name for entry in management.list(f"{self._topic}/Subscriptions")]
        return recent_messages(self._session.access, self._topic, names)

    def _check(self) -> None:
        sql = self._kind.value == "SqlFilter"
        self._sql.set_visibility(sql)
        for each in (*self._fields.values(), self._properties):
            each.set_visibility(self._kind.value == "CorrelationFilter")
        problem = check_action(self._action.value) if (self._action.value or "").strip() else ""
        shown = Html("")
        if sql and (self._sql.value or "").strip():
            checked = check_filter(self._sql.value, self._recent)
            problem = checked.problem or problem
            if not checked.problem:
                names = ", ".join(str(each.message_id) for each in checked.matching[:5])
                text = f"Matches {len(checked.matching)} of {plural(checked.looked_at, 'recent message')}"
                told = f"{text}: {names}" if names else f"{text}."
                shown = tag("div", icon("check_circle_outline"), tag("span", told), class_="banner info")
        if problem:
            shown = join(shown, tag("div", icon("error_outline"), tag("span", problem), class_="banner bad"))
        self._checked.put(shown)

    async def _add(self) -> None:
        name = self._name.value.strip()
        if not name:
            raise ArgumentError("Give the rule a name.")
        match self._kind.value:
            case "SqlFilter":
                made = sql_elements("SqlFilter", self._sql.value)
            case "CorrelationFilter":
                fields = {key: each.value.strip() for key, each in self._fields.items() if each.value.strip()}
                made = correlation_elements(fields, parse_properties(self._properties.value or ""))
            case "TrueFilter":
                made = sql_elements("TrueFilter", "1=1")
            case _:
                made = sql_elements("FalseFilter", "1=0")
        elements = list(rule_elements(name, made, self._action.value.strip() or None))

        def ask() -> None:
            with self._session.access.management() as management:
                management.create(f"{self._path}/Rules/{name}", RULE_DESCRIPTION, elements)

        await in_thread(ask)
        await self.refresh()


def elements_of(rule: Mapping[str, Any]) -> Iterator[str]:
    """What creates this rule again."""
    kind = str(rule.get("filterType"))
    if kind == "CorrelationFilter":
        fields = {
            name: str(rule[shown_name(shown)])
            for name, shown in CORRELATION_ELEMENTS.items()
            if shown_name(shown) in rule
        }
        made = correlation_elements(fields, rule.get("properties") or {})
    else:
        made = sql_elements(kind, str(rule.get("sqlExpression") or "1=1"), rule.get("parameters"))
    return rule_elements(str(rule["name"]), made, rule.get("action"), rule.get("actionParameters"))


def _listed(rules: list[dict[str, object]]) -> Html:
    if not rules:
        return empty_state(
            "filter_alt_off", "No rules", "This subscription gets no messages until it has a rule."
        )
    columns = [
        Column("Name", lambda each: str(each["name"])),
        Column("Filter", lambda each: KINDS.get(str(each.get("filterType")), "")),
        Column("Selects", _selects),
        Column("Action", lambda each: tag("code", each.get("action") or "–"), narrow=False),
        Column("Actions", lambda each: action_button("Delete…", "delete", each["name"], tone="danger")),
    ]
    return table("Rules", columns, rules)


def _selects(rule: dict[str, Any]) -> Html:
    if rule.get("filterType") != "CorrelationFilter":
        return tag("code", rule.get("sqlExpression") or "")
    told = {**rule, **(rule.get("properties") or {})}
    hidden = ("name", "filterType", "action", "createdAt", "properties")
    return tag("code", ", ".join(f"{name} = {value}" for name, value in told.items() if name not in hidden))
