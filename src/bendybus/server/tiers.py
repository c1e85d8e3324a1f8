"""The tier of each namespace, and its partitions in Premium.

A namespace has the tier that is set for it by name, on the command line or in Config.json. Otherwise it has
the one that is set for the whole server. If that is not set either, the tier stays as it was: the catalog
keeps both values (broker/broker.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from bendybus.domain.entities import PREMIUM_PARTITIONS, PREMIUM_PARTITIONS_DEFAULT, Tier
from bendybus.errors import ConfigError
from bendybus.server.emulator_config import NamespaceConfig
from bendybus.server.settings import Settings

__all__ = ["NamespaceTier", "refuse_unknown_names", "refuse_unused_partitions"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NamespaceTier:
    tier: Tier
    premium_partitions: int

    @classmethod
    def of(
        cls, name: str, settings: Settings, config: NamespaceConfig, recorded: Mapping[str, object]
    ) -> Self:
        """`recorded` is what the catalog has about the namespace."""
        kept_tier, kept_partitions = _kept(recorded)
        tier = settings.namespace_tiers.get(name.lower()) or config.tier or settings.tier
        if tier and kept_tier and tier is not kept_tier:
            logger.info("namespace %s: its tier was %s and is %s from now on", name, kept_tier, tier)
        found = tier or kept_tier or Tier.STANDARD
        own = settings.namespace_premium_partitions.get(name.lower()) or config.premium_partitions
        if own and found is not Tier.PREMIUM:
            raise ConfigError(
                f"namespace '{name}': premium messaging partitions are set to {own}, but its tier is {found}"
            )
        if found is Tier.PREMIUM:
            own = own or settings.premium_partitions
        return cls(found, own or kept_partitions or PREMIUM_PARTITIONS_DEFAULT)


def _kept(recorded: Mapping[str, object]) -> tuple[Tier | None, int | None]:
    tier, partitions = recorded.get("tier"), recorded.get("premium_partitions")
    return (
        Tier(tier) if isinstance(tier, str) and tier in list(Tier) else None,
        partitions if isinstance(partitions, int) and partitions in PREMIUM_PARTITIONS else None,
    )


def refuse_unknown_names(settings: Settings, names: Iterable[str]) -> None:
    """Refuse what is set for a namespace that the server does not have."""
    known = {name.lower() for name in names}
    for option, given in (
        ("--tier", settings.namespace_tiers),
        ("--premium-messaging-partitions", settings.namespace_premium_partitions),
        ("--disable-local-auth", settings.namespace_disable_local_auth),
    ):
        for name, value in given.items():
            if name not in known:
                raise ConfigError(f"{option} is '{name}={value}', but no namespace is called '{name}'")


def refuse_unused_partitions(settings: Settings, tiers: Iterable[Tier]) -> None:
    """Refuse partitions for Premium on a server without such a namespace."""
    if settings.premium_partitions and Tier.PREMIUM not in tiers:
        raise ConfigError(
            f"--premium-messaging-partitions is {settings.premium_partitions}, but no namespace has the "
            "premium tier"
        )
