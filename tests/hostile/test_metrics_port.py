"""`--metrics-port`: how the server is, for everybody who reaches the port, and nothing else."""

from __future__ import annotations

import os
import re
import time
from http.client import HTTPConnection

from bendybus.auth.key_ring import ROOT_RULE_NAME
from bendybus.auth.sas import make_token
from bendybus.server.protocol_sniffing import SUPPORTED_AMQP_HEADER
from fix_server import StartServer


def test_the_port_for_metrics_shows_metrics_and_health_and_nothing_else(start_server: StartServer) -> None:
    server = start_server({"q": {}}, None, "--metrics-port", "0")
    found = re.search(r"metrics are served on port (\d+)", server.log.read_text())
    assert found is not None
    connection = HTTPConnection("127.0.0.1", int(found[1]), timeout=20)
    token = make_token("sb://127.0.0.1/", ROOT_RULE_NAME, server.key, int(time.time()) + 600)

    def ask(method: str, path: str, **headers: str) -> tuple[int, bytes]:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    status, body = ask("GET", "/metrics", **{"X-Forwarded-For": "203.0.113.9"})
    assert (status, b'bendybus_partitions{entity="q"' in body) == (200, True)
    assert ask("GET", "/health")[0] == 200
    for method, path in (("GET", "/q"), ("GET", "/$stores"), ("POST", "/q/messages"), ("POST", "/$reset")):
        assert ask(method, path, Authorization=token)[0] == 404
    connection.close()
    connection.connect()
    assert connection.sock is not None
    connection.sock.sendall(SUPPORTED_AMQP_HEADER)
    assert connection.sock.recv(100) == b""
    connection.close()
    assert server.stop() == os.EX_OK
