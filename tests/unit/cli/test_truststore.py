"""Certificates are added where clients look for them, and taken back, with the real tools."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from bendybus.cli.truststore import JavaStore, PythonBundle, SystemStore, find_bundle
from bendybus.errors import ConfigError
from bendybus.server.tls import certificate_in, server_context


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate as a server makes it, and its key."""
    certificate, _ = certificate_in(tmp_path_factory.mktemp("tls"), [])
    return certificate, certificate.with_suffix(".key")


def trusts(bundle: Path, pair: tuple[Path, Path]) -> bool:
    """Whether a client that trusts the bundle connects to a server with the certificate."""
    client = ssl.create_default_context(cafile=str(bundle))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server_context(*pair).wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return True


def test_a_python_trusts_the_certificate_until_it_is_taken_back(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    bundle = tmp_path / "cacert.pem"
    other, _ = certificate_in(tmp_path / "other", [])
    shutil.copyfile(other, bundle)
    before = bundle.read_bytes()
    assert not trusts(bundle, pair)
    store = PythonBundle(bundle)
    store.add(pair[0])
    store.add(pair[0])
    assert trusts(bundle, pair)
    assert store.remove() == 1
    assert bundle.read_bytes() == before


def test_the_bundle_of_a_python_is_found(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-python cannot be run"):
        find_bundle(str(tmp_path / "no-python"))
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\nexit 1\n")
    without.chmod(0o700)
    assert find_bundle(str(without)) is None


def test_a_bundle_that_cannot_be_written_is_told(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        PythonBundle(tmp_path / "missing.pem").add(pair[0])


@pytest.mark.skipif(
    not shutil.which("update-ca-certificates"), reason="needs Debian's update-ca-certificates"
)
def test_the_systems_bundle_has_the_certificate_until_it_is_taken_back(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    own, made, none = tmp_path / "own", tmp_path / "made", tmp_path / "none"
    for folder in (own, made, none):
        folder.mkdir()
    (none / "conf").write_text("")
    places = {"--localcertsdir": own, "--etccertsdir": made, "--hooksdir": none, "--certsdir": none}
    options = [str(part) for pair in places.items() for part in pair]
    command = ["update-ca-certificates", *options, "--certsconf", str(none / "conf")]
    other, _ = certificate_in(tmp_path / "other", [])
    shutil.copyfile(other, own / "other.crt")
    store = SystemStore(own, command, [*command, "--fresh"])
    store.add(pair[0])
    assert trusts(made / "ca-certificates.crt", pair)
    assert store.remove() == 1
    assert not trusts(made / "ca-certificates.crt", pair)
    assert not list(made.glob("bendybus-*"))
    assert store.remove() == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_without_the_right_the_user_is_told_to_be_root(pair: tuple[Path, Path], tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="call this command as root"):
        SystemStore(tmp_path, ["true"], ["true"]).add(pair[0])


@pytest.mark.skipif(not shutil.which("keytool"), reason="needs Java's keytool")
def test_java_has_the_certificate_until_it_is_taken_back(pair: tuple[Path, Path], tmp_path: Path) -> None:
    keystore = ("-keystore", str(tmp_path / "cacerts"))
    keytool = shutil.which("keytool")
    assert keytool is not None
    other, _ = certificate_in(tmp_path / "other", [])
    store = JavaStore(keytool, keystore)
    # One of Java's own, which stays.
    what = ("-alias", "theirs", "-file", str(other), "-storepass", "changeit")
    subprocess.run([keytool, "-importcert", "-noprompt", *what, *keystore], check=True, capture_output=True)
    store.add(pair[0])
    store.add(pair[0])
    assert store.remove() == 1
    assert store.remove() == 0
