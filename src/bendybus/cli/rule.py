"""`bendybus rule`: which messages a subscription gets, and what is done to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from bendybus.cli import options as given
from bendybus.cli.command import Command, server_command
from bendybus.errors import ConfigError

__all__ = ["app"]

app = typer.Typer(help="Rules of subscriptions: create, show, list, update, delete.", no_args_is_help=True)

Subscription = Annotated[str, typer.Argument(help="Name of the subscription.")]
Name = Annotated[str, typer.Argument(help="Name of the rule.")]

Sql = Annotated[
    str | None, typer.Option("--filter-sql", metavar="SQL", help="Messages for which this holds.")
]
Action = Annotated[
    str | None, typer.Option("--action-sql", metavar="SQL", help='What is done to a message, as "SET x = 1".')
]
All = Annotated[bool, typer.Option("--filter-true", help="Every message.")]
Nothing = Annotated[bool, typer.Option("--filter-false", help="No message.")]
Field = Annotated[str | None, typer.Option(metavar="TEXT", help="Messages that have exactly this.")]
Property = Annotated[
    list[str] | None,
    typer.Option("--property", "-p", metavar="NAME=TEXT|NAME:=JSON", help="Messages with this property."),
]

COLUMNS: Final = ("Name", "Filter", "Action")

_CREATE: Final = """Create a rule.

Its filter is --filter-sql, or --filter-true, or --filter-false, or what all the other options
together say of a message.
"""
_UPDATE: Final = "Replace a rule's filter and action by what is given."


def _putting(*, update: bool) -> Callable[..., None]:
    """`create` and `update`: both take a whole rule, and differ in whether there is one already."""

    def put(
        command: Command,
        topic: given.Topic,
        subscription: Subscription,
        name: Name,
        filter_sql: Sql = None,
        filter_true: All = False,
        filter_false: Nothing = False,
        correlation_id: Field = None,
        message_id: Field = None,
        to: Field = None,
        reply_to: Field = None,
        subject: Field = None,
        session_id: Field = None,
        reply_to_session_id: Field = None,
        content_type: Field = None,
        property: Property = None,  # noqa: A002 - the option is to be called --property
        action_sql: Action = None,
    ) -> None:
        fields = {
            "correlation_id": correlation_id,
            "message_id": message_id,
            "to": to,
            "reply_to": reply_to,
            "label": subject,
            "session_id": session_id,
            "reply_to_session_id": reply_to_session_id,
            "content_type": content_type,
        }
        made = _filter(filter_sql, filter_true, filter_false, fields, property or [])
        _put(command, _path(topic, subscription, name), name, made, action_sql, update=update)

    put.__doc__ = _UPDATE if update else _CREATE
    return server_command(put)


app.command("create")(_putting(update=False))
app.command("update")(_putting(update=True))


@app.command()
@server_command
def show(command: Command, topic: given.Topic, subscription: Subscription, name: Name) -> None:
    """Show a rule."""
    from bendybus.cli.output import show_one  # noqa: PLC0415 - see main.py
    from bendybus.management.rules import shown_rule  # noqa: PLC0415

    with command.management() as management:
        show_one(shown_rule(management.get(_path(topic, subscription, name))), command.output)


@app.command("list")
@server_command
def list_rules(command: Command, topic: given.Topic, subscription: Subscription) -> None:
    """List the rules of a subscription."""
    from bendybus.cli.output import note, show_many  # noqa: PLC0415 - see main.py
    from bendybus.management.rules import shown_rule  # noqa: PLC0415

    with command.management() as management:
        rules = [shown_rule(entry) for entry in management.list(_path(topic, subscription))]
    if command.as_json:
        show_many(COLUMNS, (), rules)
    elif rules:
        show_many(COLUMNS, map(_row, rules), None)
    else:
        note("There are none: the subscription gets no messages.")


@app.command()
@server_command
def delete(
    command: Command, topic: given.Topic, subscription: Subscription, name: Name, yes: given.Yes = False
) -> None:
    """Delete a rule."""
    path = _path(topic, subscription, name)
    with command.management() as management:
        management.get(path)
        given.confirm(f"Delete the rule '{name}' of '{topic}/Subscriptions/{subscription}'?", yes)
        management.delete(path)


def _path(topic: str, subscription: str, name: str | None = None) -> str:
    rules = f"{topic}/Subscriptions/{subscription}/Rules"
    return rules if name is None else f"{rules}/{name}"


def _filter(
    sql: str | None, true: bool, false: bool, fields: dict[str, str | None], properties: list[str]
) -> str:
    """The filter that the options describe, as XML."""
    from bendybus.cli.send import read_property  # noqa: PLC0415
    from bendybus.management.rules import correlation_elements, sql_elements  # noqa: PLC0415 - see main.py

    wanted = {name: text for name, text in fields.items() if text is not None}
    correlates = bool(wanted or properties)
    if sum((sql is not None, true, false, correlates)) != 1:
        raise ConfigError(
            "a rule has one filter: --filter-sql, --filter-true, --filter-false, or what a message must have"
        )
    if sql is not None:
        return sql_elements("SqlFilter", sql)
    if true or false:
        return sql_elements("TrueFilter", "1=1") if true else sql_elements("FalseFilter", "1=0")
    return correlation_elements(wanted, dict(map(read_property, properties)))


def _put(command: Command, path: str, name: str, made: str, action: str | None, *, update: bool) -> None:
    from bendybus.cli.output import show_one  # noqa: PLC0415 - see main.py
    from bendybus.management.rules import RULE_DESCRIPTION, rule_elements, shown_rule  # noqa: PLC0415

    with command.management() as management:
        put = management.update if update else management.create
        show_one(shown_rule(put(path, RULE_DESCRIPTION, rule_elements(name, made, action))), command.output)


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
