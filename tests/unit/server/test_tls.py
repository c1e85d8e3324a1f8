"""The self-made certificate: what it names, how it is kept, when it is made anew."""

from __future__ import annotations

import ssl
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from bendybus.errors import ConfigError
from bendybus.server import tls
from bendybus.server.tls import self_made_certificate, server_context


def _names(certificate: Path) -> set[str]:
    from cryptography import x509

    made = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def test_it_names_loopback_this_host_and_whatever_is_asked_for(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "this-machine")
    certificate, _ = self_made_certificate(tmp_path, ["bus.example", "10.0.0.7"])
    expected = {"localhost", "127.0.0.1", "::1", "this-machine", "bus.example", "10.0.0.7"}
    assert _names(certificate) == expected


def test_only_the_owner_may_read_the_key(tmp_path) -> None:
    _, key = self_made_certificate(tmp_path)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_it_is_kept_from_one_start_to_the_next(tmp_path) -> None:
    certificate, _ = self_made_certificate(tmp_path, ["bus.example"])
    before = certificate.read_bytes()
    assert self_made_certificate(tmp_path, ["BUS.example"])[0].read_bytes() == before


def test_it_is_made_anew_for_a_new_name(tmp_path) -> None:
    self_made_certificate(tmp_path)
    certificate, key = self_made_certificate(tmp_path, ["bus.example"])
    assert "bus.example" in _names(certificate)
    server_context(certificate, key)


def test_it_is_made_anew_before_it_ends(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tls, "VALIDITY", timedelta(days=29))
    before = self_made_certificate(tmp_path)[0].read_bytes()
    assert self_made_certificate(tmp_path)[0].read_bytes() != before


@pytest.mark.parametrize("damaged", ["tls/server.crt", "tls/server.key"])
def test_a_lost_half_is_made_anew(tmp_path, damaged) -> None:
    self_made_certificate(tmp_path)
    (tmp_path / damaged).unlink()
    server_context(*self_made_certificate(tmp_path))


def test_a_damaged_certificate_is_made_anew(tmp_path) -> None:
    certificate, _ = self_made_certificate(tmp_path)
    certificate.write_text("no certificate")
    server_context(*self_made_certificate(tmp_path))


def test_old_versions_of_tls_are_not_spoken(tmp_path) -> None:
    assert server_context(*self_made_certificate(tmp_path)).minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_given_pair_that_does_not_fit_is_told_to_the_operator(tmp_path) -> None:
    certificate, _ = self_made_certificate(tmp_path / "one")
    _, key = self_made_certificate(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"cannot use TLS certificate .*server\.crt with key .*server\.key"):
        server_context(certificate, key)
    with pytest.raises(ConfigError, match="cannot use TLS certificate"):
        server_context(tmp_path / "none.crt", key)
