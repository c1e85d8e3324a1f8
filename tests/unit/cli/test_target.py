"""Which server a command means: the order of the sources, and what a connection string must have."""

from __future__ import annotations

from pathlib import Path

import pytest

from bendybus.cli.target import Target, find_target
from bendybus.errors import ConfigError

LOCAL = "Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey=k=;UseDevelopmentEmulator=true"
AZURE = "Endpoint=sb://bus.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=abc="


def test_a_local_server_is_spoken_to_plainly_and_at_its_port() -> None:
    target = Target.parse(LOCAL)
    assert (target.host, target.http_port, target.plain, target.key) == ("localhost", 5672, True, "k=")


def test_everybody_else_is_spoken_to_over_tls() -> None:
    target = Target.parse(AZURE)
    assert (target.netloc, target.http_port, target.plain) == ("bus.servicebus.windows.net", 443, False)
    assert target.token().startswith("SharedAccessSignature sr=https%3A%2F%2Fbus.servicebus.windows.net&sig=")


def test_an_address_of_ip_version_6_keeps_its_brackets() -> None:
    assert Target.parse(LOCAL.replace("localhost", "[::1]")).netloc == "[::1]:5672"


def test_a_token_made_elsewhere_is_used_as_it_is() -> None:
    token = "SharedAccessSignature sr=x&sig=y&se=1&skn=z"
    assert Target.parse(f"Endpoint=sb://h/;SharedAccessSignature={token}").token() == token


def test_the_option_comes_before_the_environment_and_ours_before_the_general_one() -> None:
    both = {
        "BENDYBUS_CONNECTION_STRING": AZURE.replace("bus.", "ours."),
        "SERVICEBUS_CONNECTION_STRING": AZURE.replace("bus.", "general."),
    }
    nowhere = Path("/nowhere")
    assert find_target(LOCAL, nowhere, both).host == "localhost"
    assert find_target(None, nowhere, both).host.startswith("ours.")
    del both["BENDYBUS_CONNECTION_STRING"]
    assert find_target(None, nowhere, both).host.startswith("general.")


def test_without_any_the_user_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"start one with 'bendybus serve', or pass --connection-string"):
        find_target(None, tmp_path, {})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("secret", "a part without '='"),
        ("SharedAccessKeyName=Root;SharedAccessKey=secret", "no Endpoint"),
        ("Endpoint=sb://h:port/;SharedAccessKeyName=Root;SharedAccessKey=secret", "no Endpoint"),
        ("Endpoint=sb://h/;SharedAccessKey=secret", "lacks SharedAccessKeyName"),
    ],
)
def test_what_is_missing_is_named_and_no_secret_is_quoted(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        Target.parse(text)
    assert "secret" not in str(error.value)


def test_a_target_can_be_printed_without_its_key() -> None:
    assert "abc" not in repr(Target.parse(AZURE))
