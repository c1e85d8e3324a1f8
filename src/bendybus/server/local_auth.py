"""Local authentication of each namespace: whether its keys open anything (Azure's `disableLocalAuth`).

It is set like the tier (tiers.py): by name, in Config.json, or for the whole server. If it is not set, it
stays as it was, because the catalog keeps it: a start without the option must not accept old keys again.
"""

from __future__ import annotations

import logging
from typing import Final

from bendybus.auth.key_ring import Issuer
from bendybus.errors import ConfigError
from bendybus.server.emulator_config import NamespaceConfig
from bendybus.server.settings import Settings
from bendybus.store.catalog import Catalog

__all__ = ["has_local_auth"]

logger = logging.getLogger(__name__)

RECORDED: Final = "disable_local_auth"


def has_local_auth(
    name: str, settings: Settings, config: NamespaceConfig, catalog: Catalog, issuer: Issuer | None
) -> bool:
    """Decide, and keep it in the catalog. Refused if nobody could connect then."""
    recorded = catalog.namespace()
    kept = recorded.get(RECORDED) is True
    given = (
        settings.namespace_disable_local_auth.get(name.lower()),
        config.disable_local_auth,
        settings.disable_local_auth,
    )
    disabled = next((each for each in given if each is not None), kept)
    if disabled and issuer is None:
        raise ConfigError(
            f"namespace '{name}': local authentication is disabled, and no identity provider is set, so "
            "nobody could connect. Give --jwt-issuer and --jwt-keys, or --disable-local-auth false"
        )
    if disabled != kept:
        catalog.describe_namespace({**recorded, RECORDED: disabled})
    if disabled:
        logger.info("namespace %s: local authentication is disabled: keys and SAS tokens are refused", name)
    return not disabled
