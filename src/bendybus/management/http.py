"""HTTP to a namespace: the connection, TLS, the signature of each request, and its failures.

Standard library only, so that a command starts quickly. What is asked for over it:
client.py for entities, json_api.py for stores and faults.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from bendybus.auth.connection_strings import ConnectionString
from bendybus.auth.sas import SAS_PREFIX, make_token
from bendybus.errors import BrokerError, ConnectionLost, Unauthorized

__all__ = ["Answer", "HttpClient"]

HTTP_PORT: Final = 80
HTTPS_PORT: Final = 443

# Attaching a store may have to wait for a database that is far away.
TIMEOUT_S: Final = 60
# A page of 100 entries has some 300 KB.
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024

# Longer than the longest command waits between two requests.
TOKEN_LIFE_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    reason: str
    content: bytes


class HttpClient:
    """One connection to a namespace; it is opened by the first request and again after a failure."""

    def __init__(self, namespace: ConnectionString, certificate: str | None = None) -> None:
        """`certificate` is a file to trust besides the system's certificates."""
        self._namespace = namespace
        self._connection = _connection(namespace, certificate)

    def close(self) -> None:
        self._connection.close()

    def token(self, url: str = "") -> str:
        """For the Authorization header: over the whole namespace, as the Python SDK signs.

        The key of an entity's own rule signs that entity alone, for requests about it.
        """
        namespace = self._namespace
        if namespace.signature.startswith(SAS_PREFIX):
            return namespace.signature
        if namespace.signature:
            return f"Bearer {namespace.signature}"
        scheme = "https" if namespace.tls else "http"
        expires_at_s = int(time.time()) + TOKEN_LIFE_S
        signed = f"{scheme}://{namespace.netloc}"
        if namespace.entity and f"{unquote(url).lower()}/".startswith(f"/{namespace.entity.lower()}/"):
            signed += f"/{namespace.entity}"
        return make_token(signed, namespace.key_name, namespace.key, expires_at_s)

    def request(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """`ConnectionLost` when there is no answer, `Unauthorized` when the certificate is not trusted."""
        try:
            signed = {"Authorization": self.token(url.partition("?")[0]), **(headers or {})}
            self._connection.request(method, url, body, signed)
            answer = self._connection.getresponse()
            content = answer.read(ANSWER_BYTES_MAX)
            # Whatever is left would be read as the next answer.
            if not answer.isclosed():
                self._connection.close()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise _unreachable(self._namespace.netloc, error) from error
        return Answer(answer.status, answer.reason, content)


def _connection(namespace: ConnectionString, certificate: str | None) -> http.client.HTTPConnection:
    if not namespace.tls:
        return http.client.HTTPConnection(namespace.host, namespace.port or HTTP_PORT, timeout=TIMEOUT_S)
    context = ssl.create_default_context()
    if certificate is not None:
        context.load_verify_locations(certificate)
    return http.client.HTTPSConnection(
        namespace.host, namespace.port or HTTPS_PORT, timeout=TIMEOUT_S, context=context
    )


def _unreachable(netloc: str, error: Exception) -> BrokerError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Unauthorized(f"The certificate of {netloc} is not trusted: {error.verify_message}.")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConnectionLost(f"{netloc} cannot be reached: {reason or type(error).__name__}.")
