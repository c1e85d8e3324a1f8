"""How the portal looks: one accent colour, generous space, light and dark. Styles and the logo."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

__all__ = ["ACCENT", "ICON", "ICON_URL", "LOGO", "PORTAL_CSS", "SIGN_IN_CSS"]

ACCENT: Final = "#3d4fd1"

# Two parts of a bus with a bellows between them.
LOGO: Final = (
    '<svg class="logo" viewBox="0 0 48 32" width="36" height="24" aria-hidden="true" focusable="false">'
    '<path d="M3 8a5 5 0 0 1 5-5h11v21H3z" fill="currentColor"/>'
    '<path d="M21 3h2v21h-2zM25 4h2v21h-2z" fill="currentColor" opacity=".45"/>'
    '<path d="M29 5l12 2a5 5 0 0 1 4 5v13H29z" fill="currentColor"/>'
    '<path d="M7 8h8v6H7zM33 10l7 1v5h-7z" class="glass"/>'
    '<circle cx="10" cy="26" r="4" class="wheel"/><circle cx="37" cy="27" r="4" class="wheel"/></svg>'
)

# The same in a tab of the browser, where no style reaches it.
ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -8 48 48">'
    '<path d="M3 8a5 5 0 0 1 5-5h11v21H3zM21 3h2v21h-2zM25 4h2v21h-2zM29 5l12 2a5 5 0 0 1 4 5v13H29z"'
    ' fill="#6574e8"/><circle cx="10" cy="26" r="4"/><circle cx="37" cy="27" r="4"/></svg>'
)
ICON_URL: Final = "data:image/svg+xml," + quote(ICON)

_STYLES: Final = Path(__file__).parent / "styles"
SIGN_IN_CSS: Final = (_STYLES / "sign_in.css").read_text()
PORTAL_CSS: Final = (_STYLES / "portal.css").read_text()
