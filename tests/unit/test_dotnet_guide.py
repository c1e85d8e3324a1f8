"""The .NET guide: its snippets are run by `make interop`, or it says why not."""

from __future__ import annotations

import json
import re

from interop.dotnet import from_npm, run, snippets

FIXTURE_LINES_MAX = 40


def test_every_snippet_is_run_or_names_the_package_it_needs() -> None:
    all_snippets = list(snippets.read())
    assert len(all_snippets) == snippets.PAGE.read_text().count("```csharp\n")
    left_out = {snippet.heading for snippet in all_snippets if snippet.package is not None}
    assert left_out == {"Frameworks"}
    assert all(snippet.package for snippet in all_snippets if snippet.heading == "Frameworks")


def test_the_broker_for_tests_is_short() -> None:
    (fixture,) = [each for each in snippets.read() if each.body.startswith("public sealed class Broker ")]
    assert len(fixture.code.splitlines()) <= FIXTURE_LINES_MAX


def test_settings_on_the_page_are_valid_json() -> None:
    blocks = re.findall(r"```json\n(.*?)```", snippets.PAGE.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        json.loads(block)


def test_the_project_asks_for_the_sdk_that_npm_has() -> None:
    assert f'Include="Azure.Messaging.ServiceBus" Version="{from_npm.SDK_VERSION}"' in run.PROJECT.read_text()


def test_the_page_names_the_sdk_that_the_tests_use() -> None:
    assert f"version {from_npm.SDK_VERSION} of the SDK" in snippets.PAGE.read_text()
