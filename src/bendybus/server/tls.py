"""TLS for the listener: a given certificate, or one made here and kept in the data folder.

With the self-made certificate TLS works from the first start. Clients have to be configured
to trust it (`tls/server.crt` in the data folder). Only making it needs `cryptography`, so later
starts do not import that.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bendybus.errors import ConfigError
from bendybus.namespaces import CALLED_HOST

if TYPE_CHECKING:
    from cryptography import x509

__all__ = [
    "CERTIFICATE_FILE",
    "TLS_FOLDER",
    "certificate_in",
    "make_certificate",
    "self_made_certificate",
    "server_context",
]

TLS_FOLDER = "tls"
CERTIFICATE_FILE = "server.crt"
KEY_FILE = "server.key"

# Some clients (Apple's) refuse server certificates that are valid for more than 825 days.
VALIDITY = timedelta(days=825)

# For clients whose clock is behind.
BEGINS_BEFORE = timedelta(hours=1)

# A certificate that expires soon, or whose names no longer fit, is replaced at start.
RENEW_BEFORE = timedelta(days=30)

ALWAYS_NAMED = ("localhost", "127.0.0.1", "::1")


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The server's side of TLS with this certificate (chain) and key, both PEM files."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise ConfigError(f"cannot use TLS certificate {certificate} with key {key}: {error}") from error
    context.sni_callback = _keep_called_host
    return context


def _keep_called_host(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
    """The standard library tells a server only here which name its client asked for."""
    setattr(connection, CALLED_HOST, name)


def self_made_certificate(data: Path, host_names: Iterable[str] = ()) -> tuple[Path, Path]:
    """The data folder's own certificate and key, made now if there is none that fits `host_names`."""
    return certificate_in(data / TLS_FOLDER, host_names)


def certificate_in(folder: Path, host_names: Iterable[str] = ()) -> tuple[Path, Path]:
    """The certificate and key in this folder, made now if there is none that fits `host_names`."""
    certificate, key = folder / CERTIFICATE_FILE, folder / KEY_FILE
    asked = (name for name in (socket.gethostname(), *host_names) if name and name.isascii())
    names = list(dict.fromkeys([*ALWAYS_NAMED, *asked]))
    if not (key.exists() and _still_fits(certificate, names)):
        _make(certificate, key, names)
    return certificate, key


def _still_fits(certificate: Path, names: Iterable[str]) -> bool:
    """Whether there is a certificate that names all of these and does not end soon."""
    # The standard library decodes what it is asked to trust, which spares the import of `cryptography`.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(certificate)
        details = context.get_ca_certs()[0]
    except (OSError, IndexError):
        return False
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(details["notAfter"])), UTC)
    alternatives = cast("tuple[tuple[str, str], ...]", details.get("subjectAltName", ()))
    named = {_comparable(name) for _, name in alternatives}
    return datetime.now(UTC) + RENEW_BEFORE < ends and named.issuperset(map(_comparable, names))


def _comparable(name: str) -> str:
    """`::1` and `0:0:0:0:0:0:0:1` are one address."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.lower()


def _make(certificate: Path, key: Path, names: Iterable[str]) -> None:
    made, secret = make_certificate(names, VALIDITY)
    key.parent.mkdir(parents=True, exist_ok=True)
    _write(key, secret, mode=0o600)
    _write(certificate, made, mode=0o644)


def make_certificate(
    names: Iterable[str],
    validity: timedelta,
    *,
    now: datetime | None = None,
    begins_before: timedelta = BEGINS_BEFORE,
) -> tuple[bytes, bytes]:
    """A new certificate, which is its own authority, and its key; both PEM."""
    # Imported here: 50 ms that only the first start spends.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    # P-256: made in a millisecond, and every TLS library in use knows it.
    private_key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Bendybus")])
    now = now or datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - begins_before)
        .not_valid_after(now + validity)
        .add_extension(x509.SubjectAlternativeName(list(map(_alternative_name, names))), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private_key.public_key()), critical=False)
        # A client that trusts several servers' certificates tells them apart by this: all have the same name.
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(private_key.public_key()), critical=False
        )
        .sign(private_key, hashes.SHA256())
    )
    secret = private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), secret


def _alternative_name(name: str) -> x509.GeneralName:
    from cryptography import x509  # noqa: PLC0415 - see _make

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically, with the permissions `mode` from the start."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    fresh.replace(path)
