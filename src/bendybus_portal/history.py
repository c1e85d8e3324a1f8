"""The history of an entity's partitions: rates, depth, ages, and each partition's share."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from bendybus_portal.series import Counters, Series

__all__ = ["EntityHistory"]

# Of a partition's rate: how much of the new reading counts. Bars should not jump.
SMOOTHING = 0.3


class EntityHistory:
    def __init__(self) -> None:
        self.arriving = Series()
        self.leaving = Series()
        self.depth = Series()
        self.oldest_s = Series()
        self.wait_s = Series()
        """How long a message waits on average."""
        self.rates: dict[int, float] = {}
        """Messages that arrive per second, by partition."""
        self._counters = Counters()
        self._before: tuple[float, int, Set[int]] | None = None
        """When, how many messages, and of which partitions."""

    def add(self, at: float, told: Mapping[str, Any]) -> None:
        """One reading of `/{entity}/$partitions`."""
        up = [each for each in told["partitions"] if "arrived" in each]
        rates = {
            each["partition"]: self._counters.rate(str(each["partition"]), at, each["arrived"]) for each in up
        }
        known = {number: rate for number, rate in rates.items() if rate is not None}
        for number, rate in known.items():
            self.rates[number] = rate + (self.rates.get(number, rate) - rate) * (1 - SMOOTHING)
        held = sum(
            each.get(name) or 0 for each in up for name in ("active", "deferred", "scheduled", "deadLetters")
        )
        depth = sum(each.get("active") or 0 for each in up)
        if known:
            arriving = sum(known.values())
            self.arriving.add(at, arriving)
            # While a store comes or goes, the counts of its partitions do too.
            if self._before is not None and self._before[2] == known.keys() == rates.keys():
                before_at, before, _ = self._before
                leaving = max(0.0, arriving - (held - before) / max(0.001, at - before_at))
                self.leaving.add(at, leaving)
                # Little's law: on average, as many wait as arrive in the time that one of them waits.
                if leaving > 0 and self.depth.last is not None:
                    self.wait_s.add(at, (self.depth.last + depth) / 2 / leaving)
        self._before = (at, held, rates.keys())
        self.depth.add(at, depth)
        oldest = [each["oldestEnqueuedAt"] for each in up if each.get("oldestEnqueuedAt")]
        self.oldest_s.add(at, max(0.0, (told["at"] - min(oldest)) / 1000) if oldest else 0.0)
