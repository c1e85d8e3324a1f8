"""`bendybus policy`: shared access policies of the namespace, or of a queue or topic.

A policy is what the API calls an authorization rule: a name, rights and two keys. Keys are printed only where
they are asked for: by `connection-string` and by `show --keys`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import click

from bendybus.auth.connection_strings import ConnectionString
from bendybus.auth.sas import make_token
from bendybus.cli.command import Command, server_command
from bendybus.cli.completion import entity_names
from bendybus.cli.options import Duration, confirm, yes_option
from bendybus.cli.output import note, show_many, show_one
from bendybus.domain.durations import parse_duration
from bendybus.domain.topic_entities import split_subscription
from bendybus.errors import ConfigError, EntityExists, RuleNotFound

__all__ = ["app"]

RIGHTS: Final = ("Send", "Listen", "Manage")
COLUMNS: Final = ("Name", "Rights", "Created", "Modified")

_name_argument = click.argument("name", help="Name of the policy.")
_entity_option = click.option(
    "--entity",
    metavar="ENTITY",
    default="",
    help="The queue or topic that it belongs to.",
    show_default="the namespace",
    shell_complete=entity_names,
)
_rights_option = click.option(
    "--rights",
    type=click.Choice(RIGHTS, case_sensitive=False),
    multiple=True,
    required=True,
    help="What it allows; may be repeated. Manage includes the others.",
)
_secondary_option = click.option("--secondary", is_flag=True, help="With the secondary key.")


@click.group("policy", no_args_is_help=True)
def app() -> None:
    """Shared access policies, their keys and SAS tokens."""


@app.command("list")
@_entity_option
@server_command
def list_policies(command: Command, entity: str) -> None:
    """List the policies of the namespace, or of a queue or topic."""
    found = [_without_keys(rule) for rule in command.ask_json("GET", _path(entity))["rules"]]
    if found or command.as_json:
        show_many(COLUMNS, map(_row, found), found if command.as_json else None)
    else:
        note("There are none.")


@app.command
@_name_argument
@_entity_option
@click.option("--keys", is_flag=True, help="Show its keys too.")
@server_command
def show(command: Command, name: str, entity: str, keys: bool) -> None:
    """Show a policy; its keys only with --keys."""
    rule = command.ask_json("GET", _path(entity, name))
    _show(command, rule if keys else _without_keys(rule))


@app.command
@_name_argument
@_rights_option
@_entity_option
@server_command
def create(command: Command, name: str, rights: tuple[str, ...], entity: str) -> None:
    """Create a policy with two new keys."""
    path = _path(entity, name)
    try:
        command.ask_json("GET", path)
    except RuleNotFound:
        _show(command, _without_keys(command.ask_json("PUT", path, {"rights": list(rights)})))
        return
    raise EntityExists(f"There is a policy '{name}' already: 'bendybus policy update' changes its rights.")


@app.command
@_name_argument
@_rights_option
@_entity_option
@server_command
def update(command: Command, name: str, rights: tuple[str, ...], entity: str) -> None:
    """Change the rights of a policy; its keys stay."""
    path = _path(entity, name)
    # The request alone would create a policy whose name is misspelt.
    command.ask_json("GET", path)
    _show(command, _without_keys(command.ask_json("PUT", path, {"rights": list(rights)})))


@app.command
@_name_argument
@click.option(
    "--key",
    type=click.Choice(["primary", "secondary"]),
    required=True,
    help="Which of the two; the other stays valid.",
)
@_entity_option
@yes_option
@server_command
def rotate(command: Command, name: str, key: str, entity: str, yes: bool) -> None:
    """Replace one of a policy's two keys with a new one.

    Clients that use the old key are refused when their tokens expire. Give them the other key first.
    """
    path = _path(entity, name)
    command.ask_json("GET", path)
    confirm(f"Replace the {key} key of the policy '{name}'? Clients that use it need the new one.", yes)
    rule = command.ask_json("POST", f"{path}/regenerateKey", {"which": key})
    note(f"The {key} key of '{name}' is a new one.")
    _print_connection_string(command, rule, entity, secondary=key == "secondary")


@app.command
@_name_argument
@_entity_option
@yes_option
@server_command
def delete(command: Command, name: str, entity: str, yes: bool) -> None:
    """Delete a policy. Its keys are no longer valid."""
    path = _path(entity, name)
    command.ask_json("GET", path)
    confirm(f"Delete the policy '{name}'? Its keys open nothing from then on.", yes)
    command.ask_json("DELETE", path)


@app.command("connection-string")
@_name_argument
@_entity_option
@_secondary_option
@server_command
def connection_string(command: Command, name: str, entity: str, secondary: bool) -> None:
    """Print the connection string of a policy, with its key.

    With --entity, the policy may belong to the entity or to the namespace, and the string names the entity.
    """
    rule = _found(command, entity, name)
    _print_connection_string(command, rule, entity, secondary=secondary)


@app.command
@click.argument("name", required=False, help="Name of the policy.")
@click.option(
    "--entity",
    metavar="ENTITY",
    default="",
    help="The only entity that the token is for.",
    show_default="the whole namespace",
    shell_complete=entity_names,
)
@click.option("--valid", type=Duration(), default="1h", show_default=True, help="For how long, such as 30m.")
@_secondary_option
@server_command
def token(command: Command, name: str | None, entity: str, valid: str, secondary: bool) -> None:
    """Print a SAS token, made with the key of a policy.

    Without NAME it is made with the key of the connection string, and no server is needed.
    """
    seconds = parse_duration(valid)
    if seconds is None:
        raise ConfigError("--valid is unlimited: a token has to end")
    namespace = command.namespace()
    if name is None:
        key_name, key = namespace.key_name, namespace.key
        if secondary:
            raise ConfigError("--secondary needs the NAME of a policy")
        if not key:
            raise ConfigError("there is no key to make a token with: name a policy")
    else:
        rule = _found(command, entity, name)
        key_name, key = name, rule["secondaryKey" if secondary else "primaryKey"]
    ends_at_s = int(time.time() + seconds)
    made = make_token(f"sb://{namespace.host}/{entity.strip('/')}", key_name, key, ends_at_s)
    if command.as_json:
        ends_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends_at_s))
        show_one({"token": made, "policy": key_name, "entity": entity, "expiresAt": ends_at}, command.output)
    else:
        click.echo(made)


def _path(entity: str, name: str = "") -> str:
    path = f"/{quote(entity.strip('/'))}/$authorizationRules" if entity else "/$authorizationRules"
    return f"{path}/{quote(name, safe='')}" if name else path


def _found(command: Command, entity: str, name: str) -> dict[str, Any]:
    """The policy of the entity or, if it has none of this name, of the namespace. Subscriptions have none."""
    subscription = split_subscription(entity)
    owner = entity if subscription is None else subscription[0]
    if owner:
        try:
            return command.ask_json("GET", _path(owner, name))
        except RuleNotFound:
            pass
    return command.ask_json("GET", _path("", name))


def _without_keys(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rule.items() if not name.endswith("Key")}


def _row(rule: Mapping[str, Any]) -> tuple[object, ...]:
    return (rule["name"], ", ".join(rule["rights"]), rule["createdAt"], rule["modifiedAt"])


def _show(command: Command, rule: Mapping[str, Any]) -> None:
    shown = dict(rule) if command.as_json else {**rule, "rights": ", ".join(rule["rights"])}
    show_one(shown, command.output)


def _print_connection_string(
    command: Command, rule: Mapping[str, Any], entity: str, *, secondary: bool
) -> None:
    key = rule["secondaryKey" if secondary else "primaryKey"]
    text = _connection_string(command.namespace(), str(rule["name"]), str(key), entity.strip("/"))
    if command.as_json:
        show_one({"policy": rule["name"], "connectionString": text}, command.output)
    else:
        click.echo(text)


def _connection_string(namespace: ConnectionString, name: str, key: str, entity: str) -> str:
    """The same endpoint with another key."""
    text = f"Endpoint=sb://{namespace.netloc}/;SharedAccessKeyName={name};SharedAccessKey={key}"
    text += f";EntityPath={entity}" if entity else ""
    return text if namespace.tls else f"{text};UseDevelopmentEmulator=true"
