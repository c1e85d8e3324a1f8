"""HTTP to a namespace: which scheme, whose signature."""

from __future__ import annotations

import socket

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import ConnectionLost
from bendybus.management.http import HttpClient

AZURE = "Endpoint=sb://bus.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=abc="


def test_a_token_is_for_the_whole_namespace() -> None:
    token = HttpClient(ConnectionString.parse(AZURE)).token()
    assert token.startswith("SharedAccessSignature sr=https%3A%2F%2Fbus.servicebus.windows.net&sig=")


def test_the_key_of_an_entity_signs_requests_about_it_for_that_entity() -> None:
    client = HttpClient(ConnectionString.parse(f"{AZURE};EntityPath=a/b"))
    whole = "SharedAccessSignature sr=https%3A%2F%2Fbus.servicebus.windows.net&sig="
    own = "SharedAccessSignature sr=https%3A%2F%2Fbus.servicebus.windows.net%2Fa%2Fb&sig="
    for url, expected in {
        "/a/b": own,
        "/A/B/$partitions": own,
        "/a/bc": whole,
        "/$namespaceinfo": whole,
    }.items():
        assert client.token(url).startswith(expected), url


def test_a_token_made_elsewhere_is_used_as_it_is() -> None:
    token = "SharedAccessSignature sr=x&sig=y&se=1&skn=z"
    namespace = ConnectionString.parse(f"Endpoint=sb://h/;SharedAccessSignature={token}")
    assert HttpClient(namespace).token() == token


def test_a_server_that_is_not_there_is_named_with_the_reason() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        client = HttpClient(
            ConnectionString.parse(
                f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=k;"
                "UseDevelopmentEmulator=true"
            )
        )
        with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port} cannot be reached: Connection refused"):
            client.request("GET", "/")
