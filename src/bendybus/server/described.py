"""What a Config.json asks for in a namespace, applied where the catalog is.

A server that is alone applies its own file. Of several processes on one machine, the first one does, because
all of them have the same file. A broker of a cluster that does not lead passes its file on to the one that
does: so a changed file takes effect when any broker is started with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from bendybus import audit
from bendybus.admin.authorization_rules import AuthorizationRules
from bendybus.broker.broker import Broker
from bendybus.domain.entities import QueueDescription, normalise_path
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import ConfigError, RequestError, StoreUnavailable, Unavailable
from bendybus.server.cluster_node import ClusterNode
from bendybus.server.cluster_part import ClusterPart
from bendybus.server.emulator_config import NamespaceConfig, parse_config

__all__ = ["Described"]

logger = logging.getLogger(__name__)

D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription)

# A question of a cluster's broker to the one that leads: its file's name and text.
CONFIG: Final = "config"
# Half of what a frame between brokers may have. A thousand queues with every property come to 600 KB.
PASSED_ON_BYTES_MAX: Final = 8 * 1024 * 1024
# Until every store has an owner, or another broker leads.
PATIENCE_S: Final = 20.0
AGAIN_S: Final = 0.1
# Thousands of partitions are created while the answer is awaited.
ANSWER_TIMEOUT_S: Final = 120.0


class Described:
    """The description of one namespace."""

    def __init__(
        self, file: Path | None, config: NamespaceConfig, broker: Broker, rules: AuthorizationRules
    ) -> None:
        self._file = file
        self._config = config
        self._broker = broker
        self._rules = rules

    @property
    def _is_empty(self) -> bool:
        config = self._config
        return not (config.topics or config.queues or config.subscriptions or config.rules)

    async def apply(self, member: ClusterPart | None) -> None:
        """Create and change everything as the file has it. `ConfigError` if a part of it is refused."""
        try:
            if isinstance(member, ClusterNode):
                await self._apply_in_cluster(member)
            elif member is None or member.has_catalog:
                if member is not None and not self._is_empty:
                    await member.cluster.assembled()
                try:
                    await self._apply(self._config)
                except StoreUnavailable as reason:
                    self._tell_missing(reason)
        except RequestError as refusal:
            raise ConfigError(f"{self._file}: {refusal}") from refusal

    def _tell_missing(self, reason: Exception) -> None:
        # The rest of the namespace is served anyway; the next start applies the description.
        logger.error("%s: not all entities could be created or updated: %s", self._file, reason)

    async def _apply(self, config: NamespaceConfig) -> None:
        with audit.acting(audit.Actor("Config.json", namespace=config.name)):
            keep_status = partial(self._keep_status, config.with_status)
            await self._broker.ensure(
                [keep_status(topic) for topic in config.topics],
                [keep_status(queue) for queue in config.queues],
                [keep_status(subscription) for subscription in config.subscriptions],
            )
            for scope, rules in config.rules.items():
                await self._rules.bring(scope, rules)

    def _keep_status(self, with_status: Set[str], description: D) -> D:
        """The description, with the status that the entity has if the file sets none.

        An operator who disables a queue while the server runs expects that a restart does not enable it.
        """
        existing = self._broker.entities.look_up(description.path)
        if existing is None or normalise_path(description.path) in with_status:
            return description
        return replace(description, status=existing.description.status)

    async def _apply_in_cluster(self, node: ClusterNode) -> None:
        node.others.answer(CONFIG, tuple[str, str], lambda passed: self._apply_of_another(node, *passed))
        if self._is_empty:
            return
        loop = asyncio.get_running_loop()
        patience = loop.time() + PATIENCE_S
        while True:
            try:
                if node.has_catalog:
                    await self._apply(self._config)
                else:
                    leader = node.cluster.leader.name
                    await node.others.ask(leader, CONFIG, self._passed_on(), type(None), ANSWER_TIMEOUT_S)
                return
            except Unavailable as reason:
                if loop.time() > patience:
                    self._tell_missing(reason)
                    return
                await asyncio.sleep(AGAIN_S)

    def _passed_on(self) -> tuple[str, str]:
        assert self._file is not None, "a description that is not empty was read from a file"
        text = self._file.read_text(encoding="utf-8-sig")
        if len(text.encode()) > PASSED_ON_BYTES_MAX:
            raise ConfigError(
                f"{self._file}: too large for a cluster, where {PASSED_ON_BYTES_MAX // 2**20} MB are allowed"
            )
        return str(self._file), text

    async def _apply_of_another(self, node: ClusterNode, file: str, text: str) -> None:
        if not node.has_catalog:
            raise Unavailable("This broker does not lead. Please retry the operation.")
        for config in parse_config(Path(file), text):
            await self._apply(config)
