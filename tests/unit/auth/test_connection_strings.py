"""Connection strings: what they say, what is refused, and that no key is ever printed."""

from __future__ import annotations

import pytest

from bendybus.auth.connection_strings import ConnectionString, local_connection_string
from bendybus.errors import ArgumentError

LOCAL = (
    "Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey=top+secret=;"
    "UseDevelopmentEmulator=true;EntityPath=orders"
)
AZURE = "Endpoint=sb://bus.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=top+secret="


def test_an_emulators_string_means_no_tls_and_names_its_port() -> None:
    given = ConnectionString.parse(LOCAL)
    assert (given.host, given.port, given.tls, given.netloc) == ("localhost", 5672, False, "localhost:5672")
    assert (given.key_name, given.key, given.entity) == ("Root", "top+secret=", "orders")


def test_every_other_string_means_tls_on_the_usual_port() -> None:
    given = ConnectionString.parse(AZURE)
    assert (given.netloc, given.port, given.tls) == ("bus.servicebus.windows.net", None, True)


def test_an_address_of_ip_version_6_keeps_its_brackets() -> None:
    assert ConnectionString.parse(LOCAL.replace("localhost", "[::1]")).netloc == "[::1]:5672"


def test_a_token_takes_the_place_of_a_key() -> None:
    token = "SharedAccessSignature sr=x&sig=y&se=1&skn=z"
    assert ConnectionString.parse(f"Endpoint=sb://h/;SharedAccessSignature={token}").signature == token


def test_names_are_read_in_any_case_and_empty_parts_are_skipped() -> None:
    given = ConnectionString.parse(" endpoint=sb://h ;; sharedaccesskeyname = a;SHAREDACCESSKEY=k; ")
    assert (given.host, given.key_name, given.key) == ("h", "a", "k")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Endpoint"),
        ("secret", "a part without '='"),
        ("SharedAccessKeyName=a;SharedAccessKey=secret", "needs an Endpoint"),
        ("Endpoint=127.0.0.1;SharedAccessKeyName=a;SharedAccessKey=secret", "needs an Endpoint"),
        ("Endpoint=https://h;SharedAccessKeyName=a;SharedAccessKey=secret", "needs an Endpoint"),
        ("Endpoint=sb://[secret;SharedAccessKeyName=a;SharedAccessKey=secret", "needs an Endpoint"),
        ("Endpoint=sb://h:x;SharedAccessKeyName=a;SharedAccessKey=secret", "port"),
        ("Endpoint=sb://h:70000;SharedAccessKeyName=a;SharedAccessKey=secret", "port"),
        ("Endpoint=sb://h;SharedAccessKey=secret", "lacks SharedAccessKeyName"),
        ("Endpoint=sb://h;SharedAccessKeyName=a", "lacks SharedAccessKey"),
        ("Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey=secret;SharedAccessKey=secret", "twice"),
        ("Endpoint=sb://h;SharedAcessKey=secret", "none of"),
    ],
)
def test_a_bad_string_is_refused_without_quoting_it(text: str, told: str) -> None:
    with pytest.raises(ArgumentError, match=told) as caught:
        ConnectionString.parse(text)
    assert "secret" not in str(caught.value)


def test_a_connection_string_can_be_printed_without_its_key() -> None:
    assert "secret" not in repr(ConnectionString.parse(AZURE))


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("bus.example", "bus.example"),
    ],
)
def test_the_connection_string_is_one_a_client_here_can_use(host: str, endpoint: str) -> None:
    assert local_connection_string(host, 5672, "k=") == (
        f"Endpoint=sb://{endpoint}:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=k=;UseDevelopmentEmulator=true"
    )


def test_the_official_client_reads_the_local_connection_string() -> None:
    from azure.servicebus import ServiceBusClient

    text = local_connection_string("127.0.0.1", 15672, "abc=")
    with ServiceBusClient.from_connection_string(text) as client:
        assert client.fully_qualified_namespace == "127.0.0.1:15672"


def test_what_a_server_prints_is_read_back() -> None:
    given = ConnectionString.parse(local_connection_string("::", 5672, "k="))
    assert (given.netloc, given.tls, given.key) == ("[::1]:5672", False, "k=")
