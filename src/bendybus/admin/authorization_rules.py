"""The authorization rules of a namespace: kept by the broker, and in the key ring.

The broker keeps rules durably; tokens are checked against the key ring (auth/key_ring.py). Only
this module changes the two. A changed rule takes effect with the next token: claims that were
granted last until their token expires, so a new key disconnects no client. The root rule
belongs to the server and is not kept by the broker.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from bendybus import audit
from bendybus.auth.key_ring import ROOT_RULE_NAME, AccessRule, KeyRing
from bendybus.auth.rights import Right
from bendybus.broker.broker import Broker
from bendybus.broker.clock import now
from bendybus.broker.entity import Entity
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Subscription, Topic
from bendybus.domain.access import RIGHTS, RULES_MAX, AuthorizationRule, with_rule
from bendybus.errors import ArgumentError, InvalidOperation, QuotaExceeded, RuleNotFound
from bendybus.names import Instant

__all__ = ["KEY_LENGTH_MIN", "RootRule", "AuthorizationRules", "WhichKey", "check_key", "new_key"]

WhichKey: TypeAlias = Literal["primary", "secondary"]

# 256 bits, 44 characters in base64, as on Azure.
KEY_BYTES: Final = 32
# For keys that are set over the network. The operator's file may have shorter ones, for tests.
KEY_LENGTH_MIN: Final = 16


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode("ascii")


def check_key(name: str, key: str) -> str:
    """Check a key that a client has chosen; refuse it if it is short enough to be guessed."""
    if len(key) < KEY_LENGTH_MIN:
        raise ArgumentError(
            f"A key of the authorization rule '{name[:60]}' has {len(key)} characters; "
            f"at least {KEY_LENGTH_MIN} are needed. Leave it out to be given one."
        )
    return key


@dataclass(frozen=True, slots=True)
class RootRule:
    """The rule that always exists, with the keys that the server was started with."""

    primary_key: str
    secondary_key: str
    keep: Callable[[WhichKey, str], None] | None = None
    """Keeps a new key for the next start; None if the operator has set the key."""

    def rule(self, at: Instant) -> AuthorizationRule:
        return AuthorizationRule(ROOT_RULE_NAME, RIGHTS, self.primary_key, self.secondary_key, at, at)


class AuthorizationRules:
    """All rules. A scope is the path of an entity, or empty for the namespace."""

    def __init__(self, broker: Broker, ring: KeyRing, root: RootRule) -> None:
        self._broker = broker
        self._ring = ring
        self._root = root
        self._changing = asyncio.Lock()
        """Held during a change, so that changes are made one after the other."""

    def open(self) -> None:
        """Load the rules from the broker, and follow their changes."""
        self.namespace_changed()
        for entity in (*self._broker.queues, *self._broker.topics):
            self._entity_changed(entity)
        self._broker.entities.watch(self._entity_changed)

    # -- asking -------------------------------------------------------------------

    def rules(self, scope: str = "") -> tuple[AuthorizationRule, ...]:
        kept = self._kept(scope)
        return kept if scope else (self._root.rule(self._broker.created_at), *kept)

    def find(self, scope: str, name: str) -> AuthorizationRule:
        for rule in self.rules(scope):
            if rule.name == name:
                return rule
        raise RuleNotFound(f"{_owner(scope)} has no authorization rule '{name[:60]}'.")

    # -- changing -----------------------------------------------------------------

    async def put(
        self, scope: str, name: str, rights: Sequence[str], primary_key: str | None, secondary_key: str | None
    ) -> tuple[AuthorizationRule, bool]:
        """Create or change a rule. Returns whether it is new. A key that is not given stays, or is made."""
        self._refuse_root(scope, name)
        async with self._changing:
            present = next((rule for rule in self.rules(scope) if rule.name == name), None)
            at = now()
            rule = AuthorizationRule(
                name,
                tuple(rights),
                primary_key or (present.primary_key if present else new_key()),
                secondary_key or (present.secondary_key if present else new_key()),
                present.created_at if present else at,
                at,
            )
            await self._keep(scope, rule, name)
            return rule, present is None

    async def remove(self, scope: str, name: str) -> None:
        self._refuse_root(scope, name)
        async with self._changing:
            self.find(scope, name)
            await self._keep(scope, None, name)

    async def regenerate(
        self, scope: str, name: str, which: WhichKey, key: str | None = None
    ) -> AuthorizationRule:
        """Replace one of the two keys of a rule; the other one still works."""
        key = key or new_key()
        async with self._changing:
            if not scope and name == ROOT_RULE_NAME:
                return await self._regenerate_root(which, key)
            present = self.find(scope, name)
            if which == "primary":
                rule = replace(present, primary_key=key, modified_at=now())
            else:
                rule = replace(present, secondary_key=key, modified_at=now())
            await self._keep(scope, rule, name)
            return rule

    async def bring(self, scope: str, rules: Sequence[AuthorizationRule]) -> None:
        """Create or change rules as a file lists them. Other rules and unnamed second keys stay."""
        async with self._changing:
            held = self._kept(scope)
            for rule in rules:
                present = next((each for each in held if each.name == rule.name), None)
                if present is not None:
                    rule = replace(
                        rule,
                        secondary_key=rule.secondary_key or present.secondary_key,
                        created_at=present.created_at,
                        modified_at=present.modified_at,
                    )
                if present is None or not rule.same_but_times(present):
                    at = now()
                    rule = replace(rule, created_at=rule.created_at or at, modified_at=at)
                    held = with_rule(held, rule)
            await self._set(scope, held)

    async def _regenerate_root(self, which: WhichKey, key: str) -> AuthorizationRule:
        keep = self._root.keep
        if keep is None:
            raise InvalidOperation(
                f"The key of '{ROOT_RULE_NAME}' is set where the server is started, and changed there."
            )
        await asyncio.to_thread(keep, which, key)
        if which == "primary":
            self._root = replace(self._root, primary_key=key)
        else:
            self._root = replace(self._root, secondary_key=key)
        audit.record("key-changed", entity="", authorization_rule=ROOT_RULE_NAME, which=which)
        self.namespace_changed()
        return self._root.rule(self._broker.created_at)

    def _refuse_root(self, scope: str, name: str) -> None:
        if not scope and name == ROOT_RULE_NAME:
            raise InvalidOperation(f"'{name}' always exists as it is; only its keys can be changed.")

    async def _keep(self, scope: str, rule: AuthorizationRule | None, name: str) -> None:
        await self._set(scope, with_rule(self._kept(scope), rule, name))

    def _kept(self, scope: str) -> tuple[AuthorizationRule, ...]:
        """All but the root rule."""
        if scope:
            return self._target(scope).description.authorization_rules
        return self._broker.authorization_rules

    async def _set(self, scope: str, rules: tuple[AuthorizationRule, ...]) -> None:
        if scope:
            entity = self._target(scope)
            if entity.description.authorization_rules != rules:
                # The key ring is informed like every other watcher of the entity.
                if isinstance(entity, Topic):
                    topic = entity.description
                    changed = replace(topic, authorization_rules=rules)
                    await self._broker.topics.update(changed, based_on=topic)
                else:
                    queue = entity.description
                    await self._broker.queues.update(
                        replace(queue, authorization_rules=rules), based_on=queue
                    )
            return
        # The root rule is one of the twelve.
        if len(rules) >= RULES_MAX:
            raise QuotaExceeded(
                f"The namespace would have {len(rules) + 1} authorization rules; "
                f"at most {RULES_MAX} are allowed."
            )
        if self._broker.authorization_rules != rules:
            await self._broker.set_authorization_rules(rules)
        self.namespace_changed()

    def _target(self, scope: str) -> Queue | Topic:
        """A queue or a topic. Subscriptions use the rules of their topic."""
        entity = self._broker.find_target(scope)
        if isinstance(entity, Subscription):
            raise InvalidOperation(f"'{entity.path}' goes by the authorization rules of its topic.")
        return entity

    # -- the ring -----------------------------------------------------------------

    def namespace_changed(self) -> None:
        """The broker has other rules of the namespace."""
        self._ring.replace("", [_access_rule(rule, "") for rule in self.rules()])

    def _entity_changed(self, entity: Entity[Any, Any, Any]) -> None:
        rules = () if entity.deleted else entity.description.authorization_rules
        self._ring.replace(entity.path, [_access_rule(rule, entity.path) for rule in rules])


def _access_rule(rule: AuthorizationRule, scope: str) -> AccessRule:
    rights = Right(0)
    for name in rule.rights:
        rights |= Right[name.upper()]
    return AccessRule(rule.name, rule.primary_key, rule.secondary_key, rights, scope)


def _owner(scope: str) -> str:
    return f"'{scope}'" if scope else "The namespace"
