"""The options that set an entity's properties, made from the table of properties.

None means that an option was not given: the server then decides, or an update leaves the
property as it is. The table: domain/properties.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from bendybus.cli.options import Choices, Decorator, Duration
from bendybus.domain.properties import ALL, ENABLE_PARTITIONING, EntityStatus, Properties, Property, ValueType

__all__ = ["property_options", "taken_properties"]

_TYPES: Final[Mapping[ValueType, click.ParamType[Any]]] = {
    ValueType.BOOLEAN: click.BOOL,
    ValueType.INTEGER: click.INT,
    ValueType.DURATION: Duration(),
    ValueType.DURATION_OR_UNLIMITED: Duration(),
    ValueType.TEXT: click.STRING,
    ValueType.ENTITY: click.STRING,
    ValueType.STATUS: Choices(EntityStatus),
}


def property_options(properties: Properties) -> Decorator:
    """One option for each property that has an effect."""
    wanted = [row for row in ALL if row.option and row in properties]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for row in reversed(wanted):
            function = _option(row)(function)
        return function

    return decorate


def taken_properties(properties: Properties, given: Mapping[str, object]) -> dict[str, object]:
    """The values of these options, by the API's names."""
    return {row.name: given[row.field] for row in properties if row.option}


def _option(row: Property) -> Decorator:
    is_switch = row.type is ValueType.BOOLEAN
    # The command line creates partitioned entities by default; see `cli/entities.py`.
    default = "partitioned" if row is ENABLE_PARTITIONING else False
    return click.option(
        f"--{row.option}/--no-{row.option}" if is_switch else f"--{row.option}",
        row.field,
        type=_TYPES[row.type],
        metavar=row.metavar or None,
        default=None,
        show_default=default,
        help=_help(row),
    )


def _help(row: Property) -> str:
    # click already shows the choices of a status before the help.
    limits = "" if row.type is ValueType.STATUS else row.limits
    notes = [limits] if limits else []
    if row.fixed:
        notes.append("fixed for the entity's life")
    if row.removable:
        notes.append("'' removes it")
    return f"{row.help.removesuffix('.')} ({'; '.join(notes)})." if notes else row.help
