"""How many examples Hypothesis tries: few in `make test`, many in `make fuzz`.

Two profiles: `quick`, which every run has that names no other, and `thorough`
(`pytest --hypothesis-profile=thorough`). A test that needs more or fewer examples than others says how many
as a share: `settings(max_examples=examples(600))` is six times as many as usual, whatever is usual.

An example may take its time: how fast it is says more about the machine's other work than about us.
"""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings

__all__ = ["examples"]

USUAL: Final = 100

for name, count in {"quick": 40, "thorough": 2000}.items():
    settings.register_profile(
        name, max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("quick")


def examples(number: int) -> int:
    """So many, if the usual number is 100."""
    return max(1, number * settings.default.max_examples // USUAL)
