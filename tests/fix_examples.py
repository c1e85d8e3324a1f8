"""How many examples Hypothesis tries: few in `make test`, many in `make fuzz`.

There are two profiles: `quick`, the default, and `thorough` (`pytest --hypothesis-profile=thorough`). A test
that needs more or fewer examples than others gives a share: `settings(max_examples=examples(600))` is six
times the usual number, whatever that is. An example has no deadline, because its duration depends on the
machine's other work.
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
    """This many examples if the usual number is 100."""
    return max(1, number * settings.default.max_examples // USUAL)
