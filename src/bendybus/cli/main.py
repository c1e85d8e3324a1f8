"""The command `bendybus`: one module per command group, put together here.

Every command imports what it needs when it runs, so that asking for help or the
version stays quick, and starting the server pays for the server alone.
"""

from __future__ import annotations

from typing import Annotated

import typer

from bendybus.cli import deadletter, fault, namespace, pipeline, queue, rule, stores, subscription, topic
from bendybus.cli.cert import cert
from bendybus.cli.purge import purge
from bendybus.cli.receive import peek, receive
from bendybus.cli.send import send
from bendybus.cli.serve import serve

__all__ = ["app"]

app = typer.Typer(
    name="bendybus",
    help="A message broker that speaks Azure Service Bus's own protocols.",
    no_args_is_help=True,
    # An operator reads our own one-line errors; what is left is a fault, shown plainly.
    pretty_exceptions_enable=False,
    # In boxes, help cuts off the names of options in a terminal of the usual width.
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - 30 ms that only this option needs

        typer.echo(f"bendybus {version('bendybus')}")
        raise typer.Exit


@app.callback()
def bendybus(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """A message broker that speaks Azure Service Bus's own protocols."""


app.command()(serve)
app.command()(cert)
app.add_typer(namespace.app, name="namespace")
app.add_typer(queue.app, name="queue")
app.add_typer(topic.app, name="topic")
app.add_typer(subscription.app, name="subscription")
app.add_typer(rule.app, name="rule")
app.command()(send)
app.command()(receive)
app.command()(peek)
app.add_typer(deadletter.app, name="dead-letter")
app.command()(purge)
app.add_typer(stores.app, name="store")
app.add_typer(fault.app, name="fault")
app.add_typer(pipeline.app, name="pipeline")
