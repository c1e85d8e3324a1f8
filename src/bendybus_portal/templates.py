"""Messages to send again and again: those that everybody has, and a person's own.

A person's own templates are in the browser (its local storage, for this portal's address) and nowhere else: a
body may be secret, and the broker keeps messages, not drafts. What the browser gives back is checked. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from bendybus.errors import ArgumentError

__all__ = ["BUILT_IN", "Template", "read_templates", "with_template", "written_templates"]

# A browser keeps five million characters for an address.
TEMPLATES_MAX: Final = 50
TEMPLATE_LENGTH_MAX: Final = 64 * 1024
NAME_LENGTH_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Template:
    body: str = ""
    encoded: bool = False
    """Whether the body is base64."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Broker properties, by the names of `Draft`."""
    properties: str = ""
    """As they are typed: one a line."""
    life: str = ""


BUILT_IN: Final = {
    "Empty": Template(),
    "JSON": Template('{\n  "id": 1,\n  "name": "Ada"\n}', texts={"content_type": "application/json"}),
    "XML": Template("<order>\n  <id>1</id>\n</order>", texts={"content_type": "application/xml"}),
    "Base64 bytes": Template("AAECAwQ=", True, {"content_type": "application/octet-stream"}),
}


def read_templates(text: object) -> dict[str, Template]:
    """What the browser has kept; what cannot be read is left out."""
    try:
        kept = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        kept = {}
    if not isinstance(kept, dict):
        return {}
    found = {str(name): _read(value) for name, value in list(kept.items())[:TEMPLATES_MAX]}
    return {name: template for name, template in found.items() if template is not None}


def _read(value: object) -> Template | None:
    if not isinstance(value, dict) or not isinstance(value.get("texts"), dict):
        return None
    texts = {str(name): str(text) for name, text in value["texts"].items()}
    body, properties, life = (str(value.get(name, "")) for name in ("body", "properties", "life"))
    return Template(body, value.get("encoded") is True, texts, properties, life)


def with_template(own: Mapping[str, Template], name: str, template: Template) -> dict[str, Template]:
    """With one more, or with another under its name."""
    if not name or len(name) > NAME_LENGTH_MAX:
        raise ArgumentError(f"Give the template a name of up to {NAME_LENGTH_MAX} characters.")
    if name in BUILT_IN:
        raise ArgumentError(f"'{name}' already exists and cannot be changed. Choose another name.")
    if len(written_templates({name: template})) > TEMPLATE_LENGTH_MAX:
        raise ArgumentError(f"The template has more than {TEMPLATE_LENGTH_MAX:,} characters.")
    if name not in own and len(own) >= TEMPLATES_MAX:
        raise ArgumentError(f"There are {TEMPLATES_MAX} templates already. Delete one of them.")
    return {**own, name: template}


def written_templates(own: Mapping[str, Template]) -> str:
    return json.dumps({name: asdict(template) for name, template in own.items()})
