"""Settings: what is refused before anything is opened, and what a client is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from bendybus.errors import ConfigError
from bendybus.server.settings import Settings, refuse_exposed_keys, sas_key_from


def test_the_default_is_loopback_and_the_emulators_ports() -> None:
    settings = Settings()
    assert settings.addresses == [("127.0.0.1", 5672), ("127.0.0.1", 5300)]


def test_one_port_given_twice_is_listened_on_once() -> None:
    assert Settings(port=5672, admin_port=5672).addresses == [("127.0.0.1", 5672)]
    assert Settings(port=0, admin_port=None).addresses == [("127.0.0.1", 0)]
    assert Settings(port=0, admin_port=0).addresses == [("127.0.0.1", 0), ("127.0.0.1", 0)]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_the_well_known_key_is_good_enough_for_loopback(host: str) -> None:
    assert Settings(host=host, sas_key="SAS_KEY_VALUE").sas_key == "SAS_KEY_VALUE"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "bus.example"])
def test_the_well_known_key_is_refused_elsewhere(host: str) -> None:
    with pytest.raises(ConfigError, match="well-known key"):
        Settings(host=host, sas_key="SAS_KEY_VALUE")
    Settings(host=host, sas_key="a key of one's own")


def test_the_well_known_key_is_refused_among_others() -> None:
    with pytest.raises(ConfigError, match="well-known key"):
        refuse_exposed_keys("0.0.0.0", ["fine", "SAS_KEY_VALUE"])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"port": 70_000}, "--port is 70000; allowed is 0 to 65535"),
        ({"admin_port": -1}, "--admin-port is -1"),
        ({"stores": 0}, "--stores is 0; allowed is 1 to 64"),
        ({"log_level": "loud"}, "--log-level is 'loud'; allowed are debug"),
        ({"tls_cert": Path("x.crt")}, "--tls-cert and --tls-key go together"),
        ({"sas_key": " "}, "BENDYBUS_SAS_KEY is set but empty"),
        ({"premium_partitions": 3}, "allowed are 1, 2, 4"),
        ({"handshake_timeout_s": 0}, "must be more than 0"),
        ({"connections_max": 0}, "connections_max is 0"),
        ({"arm_any_token": True}, "--arm-any-token lets every program"),
        ({"arm_any_token": True, "development": True, "host": "0.0.0.0"}, "--arm-any-token lets every"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Settings(**wrong)


def test_the_key_does_not_show_in_logs() -> None:
    assert "hush" not in repr(Settings(sas_key="hush"))


def test_the_key_comes_from_the_environment() -> None:
    assert sas_key_from({"BENDYBUS_SAS_KEY": "mine"}) == "mine"
    assert sas_key_from({}) is None
