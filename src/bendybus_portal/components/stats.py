"""One figure with its label, as pages show them in a row at the top."""

from __future__ import annotations

from bendybus_portal.markup import EMPTY, Html, tag

__all__ = ["stat"]


def stat(label: str, value: str, detail: str = "", tone: str = "") -> Html:
    """`tone` is good, warn or bad."""
    return tag(
        "div",
        tag("span", label, class_="stat-label"),
        tag("span", value, class_="stat-value"),
        tag("span", detail, class_="soft") if detail else EMPTY,
        class_=f"stat {tone}".strip(),
    )
