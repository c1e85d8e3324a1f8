"""The documentation as a site: website/."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(site: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    options = ["--config-file", str(root / "website" / "mkdocs.yml"), "--site-dir", str(site)]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_readme_is_the_home_page_and_leads_to_the_guides(site):
    home = (site / "index.html").read_text()
    assert "self-hosted message broker" in home
    assert 'href="guides/testing.html"' in home


def test_a_link_to_a_test_shows_the_test(site):
    page = (site / "reference" / "features.html").read_text()
    links = re.findall(r'href="\.\./(source/tests/[^"#]+)', page)
    assert len(links) > 50
    for link in links:
        source = ROOT / link.removeprefix("source/").removesuffix(".txt")
        if source.is_file():
            assert (site / link).read_bytes() == source.read_bytes()
        else:
            assert set((site / link).read_text().splitlines()) <= set(os.listdir(source))


def test_pages_load_nothing_from_another_host(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]+)"', page.read_text())
        assert not [each for each in loaded if re.match(r"(https?:)?//", each)], page


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path):
    for name in ("website/mkdocs.yml", "website/pages.py", "website/site.css"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tour.md").write_text("# A tour\n\n[next](#nowhere)\n")
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / name).write_text("# A page\n")
    built = build(tmp_path / "site", tmp_path)
    assert built.returncode
    assert "#nowhere" in built.stderr
