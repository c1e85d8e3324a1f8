"""The differences between two versions of a piece of markup, so that only those are sent to a page. Pure.

The markup is ours (markup.py): every `<` begins a tag, and values of attributes are quoted. If only texts and
attributes have changed, the changes name their nodes by their place in the order of the document, and
components/markup.js applies them to the nodes that are there. The focus and the selection stay.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Final, TypeAlias

__all__ = ["Changes", "Pieces", "changes_between", "pieces_of"]

Pieces: TypeAlias = list[str]
"""Text at the even places, tags at the odd ones."""

Changes: TypeAlias = "list[tuple[int, str | dict[str, str | list[str] | None]]]"
"""Place of a node, and its new text or its new attributes: a text, None if it is gone, [what is appended]."""

_TAG: Final = re.compile(r"(<[^>]*>)")
_NAME: Final = re.compile(r"</?[^\s>]+")
_ATTRIBUTE: Final = re.compile(r'([^\s="<>]+)(?:="([^"]*)")?')

# A chart's line has thousands of characters and grows at its end. A shorter text is not worth the trouble.
APPENDED_LEAST: Final = 100


def pieces_of(markup: str) -> Pieces:
    return _TAG.split(markup)


def changes_between(before: Pieces, after: Pieces) -> Changes | None:
    """None if elements or texts have come, gone, or changed their kind."""
    if len(before) != len(after):
        return None
    changes: Changes = []
    place = 0
    for at, (old, new) in enumerate(zip(before, after, strict=True)):
        if at % 2 == 0:
            if not old and not new:
                continue
            if not old or not new:
                return None
            if old != new:
                changes.append((place, unescape(new)))
        else:
            if old != new:
                name = _name(old)
                # The markup does not tell whether a person has ticked a box: another box starts fresh.
                if name != _name(new) or name.startswith("</") or name == "<input":
                    return None
                changes.append((place, _attributes_changed(old, new)))
            elif old.startswith("</"):
                continue
        place += 1
    return changes


def _name(piece: str) -> str:
    found = _NAME.match(piece)
    return found[0] if found is not None else ""


def _attributes_changed(old: str, new: str) -> dict[str, str | list[str] | None]:
    before, after = _attributes(old), _attributes(new)
    changed: dict[str, str | list[str] | None] = dict.fromkeys(before.keys() - after.keys())
    for name, value in after.items():
        was = before.get(name)
        if was == value:
            continue
        if was is not None and len(was) >= APPENDED_LEAST and value.startswith(was):
            changed[name] = [value[len(was) :]]
        else:
            changed[name] = value
    return changed


def _attributes(piece: str) -> dict[str, str]:
    inside = piece[len(_name(piece)) : -1]
    return {name: unescape(value) for name, value in _ATTRIBUTE.findall(inside)}
