"""Pages of the site that do not lie in docs/, and links that leave docs/.

The README is the home page; the changelog and CONTRIBUTING.md are pages too. The same Markdown is read in
the repository, where links go to tests and sources. On the site these are copied below `source/`, as text, so
that a link shows the file of the version that the site describes.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Pages of the repository's root, and what they are called on the site.
OUTSIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}

# The target of a link or an image, without its anchor; other hosts and anchors of the same page do not match.
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(?=[)#\s])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text()))
    files.append(File.generated(config, "site.css", content=(ROOT / "website" / "site.css").read_text()))
    sources = {path for page in files.documentation_pages() for path in _sources(page)}
    for path in sorted(sources):
        files.append(File.generated(config, _uri(path), content=_content(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = posixpath.dirname(page.file.src_uri)

    def on_site(match: re.Match[str]) -> str:
        return posixpath.relpath(_uri(_linked(page.file, match[0])), here or ".")

    return LINK.sub(on_site, markdown)


def _sources(page: File) -> Iterator[Path]:
    """The files that a page links to and that are no pages."""
    for match in LINK.finditer(page.content_string):
        path = _linked(page, match[0])
        if not path.is_relative_to(DOCS) and path.name not in OUTSIDE:
            yield path


def _content(path: Path) -> str | bytes:
    """The text of a file; of a folder, the names in it."""
    if path.is_dir():
        return "".join(f"{each.name}\n" for each in sorted(path.iterdir()) if each.name != "__pycache__")
    return path.read_bytes()


def _linked(page: File, link: str) -> Path:
    """The file of the repository that a link on a page means."""
    names = {uri: name for name, uri in OUTSIDE.items()}
    own = ROOT / names[page.src_uri] if page.src_uri in names else DOCS / page.src_uri
    return Path(os.path.normpath(own.parent / link))


def _uri(path: Path) -> str:
    """Where a file of the repository is on the site."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    # With the ending .txt, browsers show a source instead of offering to save it.
    return OUTSIDE.get(name, f"source/{name}" if path.suffix == ".png" else f"source/{name}.txt")
