"""`bendybus fault`: make a messaging store of a development server fail, and heal it again (B-09)."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Final

import typer

from bendybus.errors import ArgumentError, BrokerError, ConfigError, ServerBusy

__all__ = ["app"]

CONNECTION_STRING_VARIABLE: Final = "BENDYBUS_CONNECTION_STRING"
TIMEOUT_S: Final = 10
TOKEN_LIFE_S: Final = 60

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

app = typer.Typer(
    help="Faults for those who test their applications: needs a server started with --development.",
    no_args_is_help=True,
)


class Switch(StrEnum):
    PAUSE = "pause"
    SLOW = "slow"
    FAIL = "fail"
    HEAL = "heal"


@app.callback()
def fault() -> None:
    """Faults for those who test their applications: needs a server started with --development."""


@app.command()
def store(
    name: Annotated[str, typer.Argument(help="The store, as /health and the metrics call it: store-0.")],
    switch: Annotated[Switch, typer.Argument(help="What shall be wrong with it, from now on.")],
    delay_ms: Annotated[int, typer.Option(min=1, help="With slow: how much longer each call takes.")] = 500,
    reason: Annotated[str, typer.Option(help="With fail: the error's text.")] = "",
    connection_string: Annotated[
        str | None,
        typer.Option(
            help="The server, as every SDK is told it.", show_default=f"${CONNECTION_STRING_VARIABLE}"
        ),
    ] = None,
) -> None:
    """Pause a messaging store, slow it down, let it fail, or heal it."""
    body: dict[str, object] = {"fault": switch.value}
    if switch is Switch.SLOW:
        body["delayMs"] = delay_ms
    if switch is Switch.FAIL:
        body["reason"] = reason
    try:
        given = connection_string or os.environ.get(CONNECTION_STRING_VARIABLE)
        if not given:
            raise ConfigError(f"pass --connection-string, or set {CONNECTION_STRING_VARIABLE}")
        _put(given, name, body)
    except BrokerError as error:
        typer.echo(f"bendybus: {error}", err=True)
        raise typer.Exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED) from None
    typer.echo(f"{name}: {'healed' if switch is Switch.HEAL else switch.value}")


def _put(connection_string: str, name: str, body: dict[str, object]) -> None:
    import http.client  # noqa: PLC0415 - see main.py
    import json  # noqa: PLC0415
    import ssl  # noqa: PLC0415
    import time  # noqa: PLC0415
    from urllib.parse import quote, urlsplit  # noqa: PLC0415

    from bendybus.auth.sas import make_token  # noqa: PLC0415

    parts = dict(part.partition("=")[::2] for part in connection_string.strip().strip(";").split(";"))
    endpoint, plain = urlsplit(parts.get("Endpoint", "")), parts.get("UseDevelopmentEmulator") == "true"
    key_name, key = parts.get("SharedAccessKeyName"), parts.get("SharedAccessKey")
    if not endpoint.hostname or not key_name or not key:
        raise ConfigError("the connection string needs Endpoint, SharedAccessKeyName and SharedAccessKey")
    connection = (
        http.client.HTTPConnection(endpoint.hostname, endpoint.port or 80, timeout=TIMEOUT_S)
        if plain
        else http.client.HTTPSConnection(
            endpoint.hostname, endpoint.port or 443, timeout=TIMEOUT_S, context=ssl.create_default_context()
        )
    )
    token = make_token(f"http://{endpoint.netloc}", key_name, key, int(time.time()) + TOKEN_LIFE_S)
    try:
        connection.request(
            "PUT", f"/$faults/stores/{quote(name, safe='')}", json.dumps(body), {"Authorization": token}
        )
        response = connection.getresponse()
        answer = response.read().decode("utf-8", "replace")
    except OSError as error:
        raise ServerBusy(f"{endpoint.netloc} cannot be reached: {error}") from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        try:
            text = json.loads(answer)["error"]
        except (ValueError, KeyError, TypeError):
            text = f"the server answered {response.status}: {answer[:200]}"
        raise ArgumentError(str(text))
