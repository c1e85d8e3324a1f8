"""Where an identity provider's keys come from: a file that changes, a URL that is asked."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bendybus.errors import ConfigError
from bendybus.server import key_sets
from bendybus.server.key_sets import FileKeys, UrlKeys, fetch, trusted_issuer
from bendybus.server.settings import Settings
from fix_async import until
from fix_jwt import ISSUER, Provider

FIRST, SECOND = Provider("ES256", "first"), Provider("ES256", "second")


class Site:
    """Serves what the test puts into `answers`, the last of them again and again."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str, dict[str, str]]] = []
        self.asked = 0
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked += 1
                status, text, headers = site.answers.pop(0) if len(site.answers) > 1 else site.answers[0]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


def ids(keys: FileKeys | UrlKeys) -> list[str | None]:
    return [key.key_id for key in keys.current().keys]


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(FIRST.document)
    keys = FileKeys(file)
    assert ids(keys) == ["first"]
    draft = tmp_path / "draft"
    draft.write_text(SECOND.document)
    os.replace(draft, file)
    assert ids(keys) == ["second"]


def test_a_file_that_was_damaged_or_removed_leaves_the_keys_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.json"
    file.write_text(FIRST.document)
    keys = FileKeys(file)
    file.write_text("{")
    assert ids(keys) == ids(keys) == ["first"]
    file.unlink()
    assert ids(keys) == ["first"]
    assert len(caplog.records) == 2  # once for each change
    file.write_text(SECOND.document)
    assert ids(keys) == ["second"]


@pytest.mark.parametrize("content", [None, "", "{}", '{"keys": []}', "[" * 100_000, "x" * 2_000_000])
def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=r"--jwt-keys .*keys\.json"):
        FileKeys(file)


async def test_an_unknown_key_makes_us_ask_again_and_a_failure_keeps_what_there_is(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_sets, "RETRY_S", 0.01)
    site.answers = [(200, FIRST.document, {}), (500, "", {}), (200, "{}", {}), (200, SECOND.document, {})]

    keys = UrlKeys(site.url)
    await keys.start()
    assert ids(keys) == ["first"]
    while ids(keys) != ["second"]:
        assert ids(keys) == ["first"]
        keys.missed()
        await asyncio.sleep(0.01)
    assert site.asked == 4
    await keys.stop()


async def test_a_provider_that_is_away_at_the_start_is_asked_until_it_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_sets, "RETRY_S", 0.01)
    site.answers = [(503, "", {}), (503, "", {}), (200, FIRST.document, {})]

    keys = UrlKeys(site.url)
    await keys.start()
    assert ids(keys) == []
    await until(lambda: bool(ids(keys)))
    await keys.stop()


def test_what_is_fetched_is_bounded_and_never_over_plain_http(site: Site) -> None:
    site.answers = [(200, "x" * 2_000_000, {})]
    with pytest.raises(ValueError, match="larger than"):
        fetch(site.url)
    site.answers = [(302, "", {"Location": "http://login.example/keys"})]
    with pytest.raises(OSError, match="must begin with https"):
        fetch(site.url)
    for url in ("http://login.example/keys", "ftp://127.0.0.1/keys", "file:///etc/keys", "https:///keys"):
        with pytest.raises(ConfigError, match="must begin with https"):
            UrlKeys(url)


def test_an_answer_that_drips_in_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sets, "FETCH_TIMEOUT_S", -1.0)
    site.answers = [(200, FIRST.document, {})]
    monkeypatch.setattr(key_sets, "_open", lambda url: key_sets.build_opener().open(url, timeout=5))
    with pytest.raises(TimeoutError, match="not all there"):
        fetch(site.url)


async def test_settings_that_name_no_issuer_load_nothing() -> None:
    assert await trusted_issuer(Settings(), AsyncExitStack()) is None


@pytest.mark.parametrize(
    "given",
    [
        {"jwt_issuer": ISSUER},
        {"jwt_keys": "keys.json"},
        {"jwt_audiences": ("x",)},
        {"jwt_roles": ("x=Send",)},
    ],
)
def test_settings_that_say_half_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="--jwt-"):
        Settings(**given)
