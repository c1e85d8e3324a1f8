"""Which server a command means: the order of the sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from bendybus.cli.target import find_namespace
from bendybus.errors import ConfigError

LOCAL = "Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey=k=;UseDevelopmentEmulator=true"
AZURE = "Endpoint=sb://bus.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=abc="


def test_the_option_comes_before_the_environment_and_ours_before_the_general_one() -> None:
    both = {
        "BENDYBUS_CONNECTION_STRING": AZURE.replace("bus.", "ours."),
        "SERVICEBUS_CONNECTION_STRING": AZURE.replace("bus.", "general."),
    }
    nowhere = Path("/nowhere")
    assert find_namespace(LOCAL, nowhere, both).host == "localhost"
    assert find_namespace(None, nowhere, both).host.startswith("ours.")
    del both["BENDYBUS_CONNECTION_STRING"]
    assert find_namespace(None, nowhere, both).host.startswith("general.")


def test_without_any_the_user_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"start one with 'bendybus serve', or pass --connection-string"):
        find_namespace(None, tmp_path, {})


@pytest.mark.parametrize(
    ("option", "environment", "told"),
    [
        ("secret", {}, "--connection-string: The connection string has a part without"),
        (None, {"SERVICEBUS_CONNECTION_STRING": "Endpoint=sb://h/;SharedAccessKey=secret"}, "SERVICEBUS_"),
    ],
)
def test_a_bad_string_is_refused_with_its_source_and_no_secret(
    option: str | None, environment: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        find_namespace(option, Path("/nowhere"), environment)
    assert "secret" not in str(error.value)
