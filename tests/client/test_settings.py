"""Settings of the client: what a connection string gives them, and that no key is ever printed."""

from __future__ import annotations

import pickle

from bendybus.client import ClientSettings

EMULATOR = (
    "Endpoint=sb://127.0.0.1:5673;SharedAccessKeyName=Root;SharedAccessKey=top+secret=;"
    "UseDevelopmentEmulator=true;EntityPath=orders"
)
AZURE = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=top+secret="


def test_an_emulators_string_means_plain_tcp():
    settings = ClientSettings.from_connection_string(EMULATOR)
    assert (settings.host, settings.port, settings.tls) == ("127.0.0.1", 5673, False)
    assert (settings.key_name, settings.key, settings.entity) == ("Root", "top+secret=", "orders")


def test_azures_string_means_tls_on_its_own_port():
    settings = ClientSettings.from_connection_string(AZURE, entity="orders")
    assert (settings.host, settings.port, settings.tls) == ("ns.servicebus.windows.net", 5671, True)
    assert settings.audience("orders") == "sb://ns.servicebus.windows.net/orders"


def test_settings_travel_to_other_processes_and_never_show_the_key():
    settings = ClientSettings.from_connection_string(EMULATOR)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert "secret" not in repr(settings) + str(settings)
