"""What JMS clients ask of a link's source or target: subscriptions, and nodes that are made for the link.

The words are those of the JMS mapping of AMQP, as Apache Qpid JMS and azure-servicebus-jms write them:

    source: a topic, capability `topic`      a subscription of its own, which ends with the link
        capability `shared`                  one that others may share, named by the link up to `|`
        durable, expiry policy `never`       one that stays, named by the link; a detach leaves it, and a
                                             close deletes it
        capability `global`                  not scoped to the client identifier, which is the container-id
    source: null                             the durable subscription that the link's name names
    source or target: dynamic                a temporary queue, or a topic (capability `temporary-topic`)

An answer has only what is in place. Here nothing is looked up: client_entities.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final, TypeVar
from uuid import uuid4

from bendybus.amqp.performatives import Source, Target
from bendybus.amqp.types import Described, Symbol
from bendybus.broker.client_subscriptions import WantedSubscription
from bendybus.domain.client_scopes import ClientScope
from bendybus.engine.sending import SendingLink
from bendybus.errors import ArgumentError, InvalidField, NotSupported
from bendybus.gateway.source_filters import SourceFilters

__all__ = [
    "QUEUE",
    "SHARED_SUBSCRIPTIONS",
    "TOPIC",
    "answer_dynamic",
    "answer_known",
    "answer_subscription",
    "asks_for_subscription",
    "capabilities_of",
    "is_dynamic",
    "known_scope",
    "names_topic",
    "wanted_subscription",
    "wants_topic",
]

# Capabilities of a source or target: the kind of its node, and of a subscription.
QUEUE: Final = "queue"
TOPIC: Final = "topic"
TEMPORARY_QUEUE: Final = "temporary-queue"
TEMPORARY_TOPIC: Final = "temporary-topic"
SHARED: Final = "shared"
GLOBAL: Final = "global"
# The capability by which a link, or a connection, says that subscriptions can be shared.
SHARED_SUBSCRIPTIONS: Final = "SHARED-SUBS"

# "the terminus is never expired" and "when the link is detached" [AMQP 3.5.6].
NEVER: Final = "never"
LINK_DETACH: Final = "link-detach"
# "none: no terminus state is retained durably" [AMQP 3.5.5]; the other two are the same here.
NOT_DURABLE: Final = 0
DURABLE: Final = 2

LIFETIME_POLICY: Final = "lifetime-policy"
# [AMQP 3.5.10]; the other policies keep a node until it has no messages or no links.
DELETE_ON_CLOSE: Final = (0x2B, "amqp:delete-on-close:list")

# Between the name of a shared subscription and what makes the names of its links different.
DELIMITER: Final = "|"

T = TypeVar("T", Source, Target)


def capabilities_of(terminus: object) -> Collection[str]:
    return getattr(terminus, "capabilities", None) or ()


def names_topic(terminus: object) -> bool:
    """Whether the client takes the node for a topic, or for a part of one."""
    return not {TOPIC, TEMPORARY_TOPIC}.isdisjoint(capabilities_of(terminus))


# -- subscriptions ----------------------------------------------------------------


def asks_for_subscription(source: object) -> bool:
    """Whether a link that receives from a topic asks for a subscription to it."""
    if not isinstance(source, Source):
        return False
    return names_topic(source) or SHARED in capabilities_of(source) or _is_durable(source)


def _is_durable(source: Source) -> bool:
    return bool(source.durable) or source.expiry_policy == NEVER


def wanted_subscription(link: SendingLink, container_id: str, filters: SourceFilters) -> WantedSubscription:
    """What the source of a link to a topic asks for. `InvalidField` for what is not offered."""
    source = link.source
    assert isinstance(source, Source)
    durable = _is_durable(source)
    _refuse_other_expiry(source, durable=durable)
    selector = "" if filters.selection is None else filters.selection.text
    capabilities = capabilities_of(source)
    shared = SHARED in capabilities
    if not shared and not durable:
        return WantedSubscription(ClientScope(uuid4().hex, "", durable=False), shared, selector)
    name = link.name.partition(DELIMITER)[0] if shared else link.name
    scope = _scope(name, "" if GLOBAL in capabilities else container_id, durable=durable)
    return WantedSubscription(scope, shared, selector)


def _refuse_other_expiry(source: Source, *, durable: bool) -> None:
    policy = source.expiry_policy
    if policy not in ((None, NEVER) if durable else (None, LINK_DETACH)):
        raise InvalidField(
            f"The expiry policy '{policy}' with durable {source.durable or 0} is not offered: a subscription "
            f"is durable and expires '{NEVER}', or it is not and expires at '{LINK_DETACH}'."
        )


def _scope(name: str, client_id: str, *, durable: bool) -> ClientScope:
    try:
        return ClientScope(name, client_id, durable)
    except ArgumentError as refusal:
        raise InvalidField(str(refusal)) from None


def answer_subscription(source: Source, wanted: WantedSubscription, filters: SourceFilters) -> Source:
    durable = wanted.scope.durable
    asked = capabilities_of(source)
    in_place = [each for each in (TOPIC, TEMPORARY_TOPIC, SHARED, GLOBAL) if each in asked]
    return replace(
        source,
        durable=DURABLE if durable else NOT_DURABLE,
        expiry_policy=Symbol(NEVER if durable else LINK_DETACH),
        timeout=None,
        filter=filters.in_place or None,
        capabilities=in_place or None,
    )


def known_scope(link: SendingLink, container_id: str) -> ClientScope:
    """The durable subscription that a link without a source means: by its name, as it was attached before."""
    name, _, rest = link.name.partition(DELIMITER)
    desired = () if link.remote is None else link.remote.desired_capabilities or ()
    is_global = GLOBAL in desired or rest.startswith(GLOBAL)
    return _scope(name, "" if is_global else container_id, durable=True)


def answer_known(topic: str, *, shared: bool, is_global: bool) -> Source:
    extra = [SHARED] * shared + [GLOBAL] * is_global
    return Source(address=topic, durable=DURABLE, expiry_policy=Symbol(NEVER), capabilities=[TOPIC, *extra])


# -- temporary nodes --------------------------------------------------------------


def is_dynamic(terminus: object) -> bool:
    return bool(getattr(terminus, "dynamic", None))


def wants_topic(terminus: Source | Target) -> bool:
    """Whether a dynamic node is a topic; otherwise a queue. Refused if it has an address or another life."""
    if terminus.address is not None:
        raise InvalidField("A dynamic node gets its address from the server: leave the address out.")
    policy = (terminus.dynamic_node_properties or {}).get(LIFETIME_POLICY)
    if policy is not None and not (isinstance(policy, Described) and policy.descriptor in DELETE_ON_CLOSE):
        raise NotSupported(f"Dynamic nodes are deleted with their link, so {policy!r} is not offered.")
    return names_topic(terminus)


def answer_dynamic(terminus: T, path: str) -> T:
    properties = terminus.dynamic_node_properties or {}
    kept = {name: value for name, value in properties.items() if name == LIFETIME_POLICY}
    in_place = [each for each in (TEMPORARY_QUEUE, TEMPORARY_TOPIC) if each in capabilities_of(terminus)]
    return replace(
        terminus,
        address=path,
        durable=NOT_DURABLE,
        expiry_policy=Symbol(LINK_DETACH),
        timeout=None,
        dynamic_node_properties=kept or None,
        capabilities=in_place or None,
    )
