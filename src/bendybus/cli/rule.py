"""`bendybus rule`: the filter rules of a subscription: which messages it gets, and how they are changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from bendybus.cli.command import Command, server_command
from bendybus.cli.options import (
    Decorator,
    confirm,
    property_option,
    read_property,
    topic_argument,
    yes_option,
)
from bendybus.cli.output import note, show_many, show_one
from bendybus.errors import ConfigError
from bendybus.management.filter_rules import (
    RULE_DESCRIPTION,
    correlation_elements,
    rule_elements,
    shown_rule,
    sql_elements,
)

__all__ = ["app"]

COLUMNS: Final = ("Name", "Filter", "Action")

_subscription_argument = click.argument("subscription", help="Name of the subscription.")
_name_argument = click.argument("name", help="Name of the rule.")


def _field_option(name: str, field: str | None = None) -> Decorator:
    """An option of a correlation filter."""
    named = name.removeprefix("--").replace("-", "_")
    return click.option(
        name, field or named, metavar="TEXT", help="Matches messages with exactly this value."
    )


@click.group("rule", no_args_is_help=True)
def app() -> None:
    """Rules of subscriptions: create, show, list, update, delete."""


def _rule_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options of a whole rule, for `create` and `update`."""
    for decorate in reversed(
        (
            topic_argument,
            _subscription_argument,
            _name_argument,
            click.option(
                "--filter-sql", metavar="SQL", help="Matches messages for which this SQL expression is true."
            ),
            click.option("--filter-true", is_flag=True, help="Matches every message."),
            click.option("--filter-false", is_flag=True, help="Matches no message."),
            _field_option("--correlation-id"),
            _field_option("--message-id"),
            _field_option("--to"),
            _field_option("--reply-to"),
            _field_option("--subject", "label"),
            _field_option("--session-id"),
            _field_option("--reply-to-session-id"),
            _field_option("--content-type"),
            property_option("Matches messages with this property."),
            click.option(
                "--action-sql",
                metavar="SQL",
                help='What to change in a matching message, such as "SET x = 1".',
            ),
        )
    ):
        function = decorate(function)
    return function


@app.command
@_rule_options
@server_command
def create(command: Command, topic: str, subscription: str, name: str, **rule: Any) -> None:
    """Create a rule.

    Its filter is --filter-sql, or --filter-true, or --filter-false, or what all the other options
    together say of a message.
    """
    _put(command, _path(topic, subscription, name), _elements(name, **rule), update=False)


@app.command
@_rule_options
@server_command
def update(command: Command, topic: str, subscription: str, name: str, **rule: Any) -> None:
    """Replace the filter and action of a rule."""
    _put(command, _path(topic, subscription, name), _elements(name, **rule), update=True)


@app.command
@topic_argument
@_subscription_argument
@_name_argument
@server_command
def show(command: Command, topic: str, subscription: str, name: str) -> None:
    """Show a rule."""
    with command.management() as management:
        show_one(shown_rule(management.get(_path(topic, subscription, name))), command.output)


@app.command("list")
@topic_argument
@_subscription_argument
@server_command
def list_rules(command: Command, topic: str, subscription: str) -> None:
    """List the rules of a subscription."""
    with command.management() as management:
        rules = [shown_rule(entry) for entry in management.list(_path(topic, subscription))]
    if command.as_json:
        show_many(COLUMNS, (), rules)
    elif rules:
        show_many(COLUMNS, map(_row, rules), None)
    else:
        note("There are none: the subscription gets no messages.")


@app.command
@topic_argument
@_subscription_argument
@_name_argument
@yes_option
@server_command
def delete(command: Command, topic: str, subscription: str, name: str, yes: bool) -> None:
    """Delete a rule."""
    path = _path(topic, subscription, name)
    with command.management() as management:
        management.get(path)
        confirm(f"Delete the rule '{name}' of '{topic}/Subscriptions/{subscription}'?", yes)
        management.delete(path)


def _path(topic: str, subscription: str, name: str | None = None) -> str:
    rules = f"{topic}/Subscriptions/{subscription}/Rules"
    return rules if name is None else f"{rules}/{name}"


def _put(command: Command, path: str, elements: list[str], *, update: bool) -> None:
    with command.management() as management:
        put = management.update if update else management.create
        show_one(shown_rule(put(path, RULE_DESCRIPTION, elements)), command.output)


def _elements(
    name: str,
    *,
    filter_sql: str | None,
    filter_true: bool,
    filter_false: bool,
    properties: tuple[str, ...],
    action_sql: str | None,
    **fields: str | None,
) -> list[str]:
    """The rule that the options describe, as XML."""
    wanted = {field: text for field, text in fields.items() if text is not None}
    correlates = bool(wanted or properties)
    if sum((filter_sql is not None, filter_true, filter_false, correlates)) != 1:
        raise ConfigError(
            "a rule has one filter: --filter-sql, --filter-true, --filter-false, or what a message must have"
        )
    if filter_sql is not None:
        made = sql_elements("SqlFilter", filter_sql)
    elif filter_true:
        made = sql_elements("TrueFilter", "1=1")
    elif filter_false:
        made = sql_elements("FalseFilter", "1=0")
    else:
        made = correlation_elements(wanted, dict(map(read_property, properties)))
    return list(rule_elements(name, made, action_sql))


def _row(rule: dict[str, object]) -> list[object]:
    told = {
        name: value
        for name, value in rule.items()
        if name not in ("name", "filterType", "action", "createdAt")
    }
    if rule.get("filterType") == "CorrelationFilter":
        shown = ", ".join(f"{name} = {value}" for name, value in told.items())
    else:
        shown = str(told.get("sqlExpression") or rule.get("filterType"))
    return [rule["name"], shown, rule.get("action")]
