"""Fixtures for every test: they live in fix_*.py, by subject, and are found by name.

Several workers share the tests out by file, so that what a file shares (a server, say) is made once; all
files that need Spark go to one of them, since a Spark session is not small. Hypothesis may take its time:
how fast an example is says more about the machine's other work than about us.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "fix_broker", "fix_postgres", "fix_server", "fix_kinds"]


@pytest.hookimpl(tryfirst=True)  # before the workers look at the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            group = "spark" if "spark" in item.path.parts else str(item.path)
            item.add_marker(pytest.mark.xdist_group(group))


settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
