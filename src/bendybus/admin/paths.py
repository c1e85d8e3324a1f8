"""Paths of the management API: what a path below a topic means.

    /{topic}/Subscriptions
    /{topic}/Subscriptions/{name}
    /{topic}/Subscriptions/{name}/Rules
    /{topic}/Subscriptions/{name}/Rules/{rule}

`Subscriptions` and `Rules` are recognised in any case. This module only parses text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Child"]

_CHILD: Final = re.compile(
    r"(?P<topic>.+?)/subscriptions(?:/(?P<subscription>[^/]+)(?P<rules>/rules(?:/(?P<rule>[^/]+))?)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Child:
    topic: str
    subscription: str | None
    rule: str | None
    is_list: bool

    @classmethod
    def parse(cls, path: str) -> Child | None:
        found = _CHILD.fullmatch(path)
        if found is None:
            return None
        is_list = found["subscription"] is None or (found["rules"] is not None and found["rule"] is None)
        return cls(found["topic"], found["subscription"], found["rule"], is_list)

    def name_in(self, namespace: str) -> str:
        """As Azure names it in errors: `namespace:Topic:topic|subscription|rule`."""
        parts = [part for part in (self.topic, self.subscription, self.rule) if part is not None]
        return f"{namespace}:Topic:{'|'.join(parts)}"
