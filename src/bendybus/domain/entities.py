"""The description of a queue, and the limits of each tier.

Every limit is checked when an entity is described and nowhere else:
`QueueDescription` refuses values that no queue may have, `Tier.check` refuses what the tier does
not offer. So every description that exists is valid. The limits of each property:
properties.py. Topics and subscriptions: topic_entities.py. How messages behave:
partition.py. Which partition they go to: routing.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Protocol

from bendybus.domain.access import AuthorizationRule, check_rules, rules_from_record
from bendybus.domain.messages import SubQueue
from bendybus.domain.properties import (
    AUTO_DELETE_ON_IDLE,
    ENABLE_EXPRESS,
    ENABLE_PARTITIONING,
    FORWARD_DEAD_LETTERED_TO,
    FORWARD_TO,
    MAX_MESSAGE_SIZE,
    MAX_SIZE,
    QUEUE,
    REQUIRES_DUPLICATE_DETECTION,
    REQUIRES_SESSION,
    EntityStatus,
    Properties,
    Property,
    check_one_of,
)
from bendybus.errors import HELP_LINK, ArgumentError, InvalidOperation, NotSupported, QuotaExceeded
from bendybus.names import EntityPath

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "EntityDescription",
    "EntityStatus",
    "QueueDescription",
    "Tier",
    "check_path",
    "check_values",
    "effective_max_size_mb",
    "max_message_bytes",
    "normalise_path",
    "recorded_values",
    "refuse_immutable_changes",
    "size_divisor",
    "split_subqueue",
]

PATH_LENGTH_MAX: Final = 260

# Partitions of a partitioned entity in Basic and Standard, whatever its size.
STANDARD_PARTITIONS: Final = 16
# The namespace setting premiumMessagingPartitions. Entities that exist keep the partitions they have.
PREMIUM_PARTITIONS: Final = (1, 2, 4)
PREMIUM_PARTITIONS_DEFAULT: Final = 2

# "Number of partitioned topics/queues per namespace ... 100" and "10,000" of all kinds. Not in Premium.
PARTITIONED_ENTITIES_MAX: Final = 100
ENTITIES_MAX: Final = 10_000

# Letters, digits, and . - _ between slashes. So no @ ? # * and no empty segment.
_PATH: Final = re.compile(r"[\w.-]+(?:/[\w.-]+)*")


def normalise_path(path: str) -> str:
    r"""The key under which an entity is found. Case is ignored, and `\` is the same as `/`."""
    return path.replace("\\", "/").lower()


# Longest first: a transfer dead-letter queue's path ends like a dead-letter queue's.
_SUBQUEUE_SUFFIXES: Final = (
    ("/$transfer/$deadletterqueue", SubQueue.TRANSFER_DEAD_LETTER),
    ("/$deadletterqueue", SubQueue.DEAD_LETTER),
    ("/$completed", SubQueue.COMPLETED),
)


def split_subqueue(path: str) -> tuple[str, SubQueue]:
    """Split an address into the entity's path and the sub-queue. Case is ignored."""
    for suffix, subqueue in _SUBQUEUE_SUFFIXES:
        if path.lower().endswith(suffix):
            return path[: -len(suffix)], subqueue
    return path, SubQueue.MAIN


class EntityDescription(Protocol):
    """What all descriptions of entities have in common."""

    PROPERTIES: ClassVar[Properties]
    """The rows of the property table that apply to this kind of entity."""

    @property
    def path(self) -> EntityPath: ...
    @property
    def label(self) -> str:
        """The entity's kind and path, as errors name it."""

    @property
    def max_size_mb(self) -> int: ...
    @property
    def max_message_size_kb(self) -> int | None:
        """None until the entity is created, if its creator does not say: the tier has a default."""

    @property
    def enable_partitioning(self) -> bool | None:
        """None until the entity is created, if its creator does not say: the namespace decides (P-09)."""

    @property
    def exact_keys(self) -> bool: ...
    @property
    def temporary(self) -> bool: ...
    @property
    def authorization_rules(self) -> tuple[AuthorizationRule, ...]: ...
    @property
    def as_sent(self) -> Mapping[str, str]: ...
    def to_record(self) -> dict[str, object]: ...


def check_path(path: str) -> EntityPath:
    """The path in the form to store, or `ArgumentError`."""
    spelling = path.replace("\\", "/")
    if len(spelling) > PATH_LENGTH_MAX:
        raise ArgumentError(
            f"The entity path '{spelling[:40]}...' has {len(spelling)} characters; at most {PATH_LENGTH_MAX}."
        )
    if not _PATH.fullmatch(spelling):
        raise ArgumentError(
            f"The entity path '{path}' is not allowed: letters, digits, '.', '-' and '_', "
            "with single '/' between them."
        )
    if "/subscriptions/" in spelling.lower():
        raise ArgumentError(f"The entity path '{path}' is not allowed: 'Subscriptions' is what topics have.")
    return EntityPath(spelling)


def recorded_values(kind: type[DataclassInstance], record: Mapping[str, object]) -> dict[str, Any]:
    """The constructor arguments from a record made by `to_record`. The constructor checks every value.

    Records of earlier versions, which had fewer properties, are accepted.
    """
    known = {each.name for each in fields(kind)}
    values = {name: value for name, value in record.items() if name in known}
    if "status" in values:
        values["status"] = EntityStatus(str(values["status"]))
    # Without this field, the entity compared keys exactly, and its messages are stored accordingly.
    values.setdefault("exact_keys", True)
    values["authorization_rules"] = rules_from_record(values.get("authorization_rules"))
    return values


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue as its creator described it. Durations are in seconds; None means unlimited.

    `max_size_mb` is the size that was chosen: `effective_max_size_mb` has what it means.
    """

    PROPERTIES: ClassVar[Properties] = QUEUE

    path: EntityPath
    lock_duration_s: float = 60
    max_size_mb: int = 1024
    max_message_size_kb: int | None = None
    requires_duplicate_detection: bool = False
    duplicate_detection_window_s: float = 600
    requires_session: bool = False
    default_message_ttl_s: float | None = None
    dead_letter_on_expiry: bool = False
    max_delivery_count: int = 10
    auto_delete_on_idle_s: float | None = None
    enable_partitioning: bool | None = None
    enable_batched_operations: bool = True
    enable_express: bool = False
    forward_to: EntityPath | None = None
    forward_dead_lettered_to: EntityPath | None = None
    status: EntityStatus = EntityStatus.ACTIVE
    user_metadata: str | None = None
    retry_delay_s: float = 0
    retry_delay_factor: int = 2
    retry_delay_max_s: float = 600
    keep_completed_s: float = 0
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    exact_keys: bool = False
    """Whether session ids and other keys are case-sensitive. True only for entities created that way."""
    temporary: bool = False
    """Whether the entity is deleted when the last link that holds it is gone (broker/temporary.py)."""
    as_sent: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Properties as a client wrote them, by name: `ForwardTo` may have been a URL. For display only."""

    def __post_init__(self) -> None:
        # The class is frozen, so this is how the path is stored with normalised slashes.
        object.__setattr__(self, "path", self._check_path())
        if self.forward_to is not None:
            # Forwarding counts as receiving, so an entity that forwards is never idle.
            object.__setattr__(self, "auto_delete_on_idle_s", None)
        check_rules(self.label, self.authorization_rules)
        check_values(self)
        self._check_combinations()

    @property
    def label(self) -> str:
        return f"Queue '{self.path}'"

    @property
    def may_have_sessions(self) -> bool:
        return self.requires_session

    @property
    def max_message_bytes(self) -> int:
        return max_message_bytes(self)

    def to_record(self) -> dict[str, object]:
        """Plain values for a catalog."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> QueueDescription:
        """Read a record made by `to_record`, also by an earlier version with fewer properties."""
        return cls(**recorded_values(cls, record))

    def refuse_immutable_changes(self, changed: QueueDescription) -> None:
        """Refuse a change to a property that is fixed at creation (P-07)."""
        refuse_immutable_changes(self, changed)

    def _check_path(self) -> EntityPath:
        return check_path(self.path)

    def _check_combinations(self) -> None:
        for target in (self.forward_to, self.forward_dead_lettered_to):
            if target is not None:
                check_path(target)


class Tier(StrEnum):
    """The tier of the namespace."""

    BASIC = "basic"
    STANDARD = "standard"
    PREMIUM = "premium"

    @property
    def sizes_mb(self) -> Sequence[int]:
        """The sizes an entity may be created with (P-08, P-09)."""
        return self._offered(MAX_SIZE)

    @property
    def message_size_kb(self) -> int:
        """The maximum message size of an entity created without one."""
        return 1024 if self is Tier.PREMIUM else 256

    def partition_count(
        self, *, enable_partitioning: bool | None, premium_partitions: int = PREMIUM_PARTITIONS_DEFAULT
    ) -> int:
        """How many partitions a new entity gets. In Premium the namespace decides (P-09).

        An entity that asks for the opposite is refused. None asks for nothing.
        """
        if self is not Tier.PREMIUM:
            return STANDARD_PARTITIONS if enable_partitioning else 1
        if premium_partitions not in PREMIUM_PARTITIONS:
            raise ArgumentError(f"premiumMessagingPartitions is {premium_partitions}; allowed are 1, 2, 4.")
        if enable_partitioning not in (None, premium_partitions > 1):
            _refuse_partitioning(premium_partitions)
        return premium_partitions

    def check(self, description: EntityDescription, present: EntityDescription | None = None) -> None:
        """Refuse what this tier does not offer, except what the entity has already (`present`)."""
        for row in (MAX_SIZE, MAX_MESSAGE_SIZE):
            value = getattr(description, row.field)
            if value not in (None, getattr(present, row.field, None)):
                azure = self._azure_on_size(row, value)
                check_one_of(description.label, row.name, value, self._offered(row), azure=azure)
        self.check_features(description, present)

    def _offered(self, row: Property) -> Sequence[int]:
        return (row.premium or row.allowed) if self is Tier.PREMIUM else row.standard

    def _azure_on_size(self, row: Property, value: int) -> str:
        if self is not Tier.PREMIUM or row is not MAX_MESSAGE_SIZE:
            return f"Bad Request. {HELP_LINK} ."
        least, most = row.premium[0], row.premium[-1]
        return (
            f"The property value for '{row.name}' must be between {least} and {most} when the namespace "
            f"'{{namespace}}' is using 'Premium' tier.\r\nParameter name: {row.name}\r\n"
            f"Actual value was {value}."
        )

    def check_features(
        self, description: EntityDescription, present: EntityDescription | None = None
    ) -> None:
        """Check only the features that can be switched on: a subscription has the sizes of its topic."""
        refused = [
            row.name
            for row in NOT_OFFERED[self]
            if getattr(description, row.field, None) not in (None, False, getattr(present, row.field, None))
        ]
        if refused:
            raise InvalidOperation(
                f"{description.label}: the {self} tier does not offer {', '.join(refused)}."
            )

    def require_premium(self, what: str) -> None:
        """`NotSupported` unless this is the premium tier; `what` names what is offered there alone."""
        if self is not Tier.PREMIUM:
            raise NotSupported(f"The {self} tier does not offer {what}: the premium tier does.")

    def check_quota(self, label: str, *, partitioned: bool, entities: int, partitioned_entities: int) -> None:
        """Refuse to create one more entity than the namespace may have (P-11)."""
        if self is Tier.PREMIUM:
            return
        if partitioned and partitioned_entities >= PARTITIONED_ENTITIES_MAX:
            raise QuotaExceeded(
                f"{label} cannot be created: the namespace has {partitioned_entities} partitioned "
                f"entities, and at most {PARTITIONED_ENTITIES_MAX} are allowed in the {self} tier."
            )
        if entities >= ENTITIES_MAX:
            raise QuotaExceeded(
                f"{label} cannot be created: the namespace has {entities} entities, "
                f"and at most {ENTITIES_MAX} are allowed."
            )


def _refuse_partitioning(premium_partitions: int) -> NoReturn:
    setting = f"The namespace has premiumMessagingPartitions {premium_partitions}"
    if premium_partitions > 1:
        raise ArgumentError(
            f"{setting}: leave EnablePartitioning out, or set it to true.",
            azure="Non-partitioned entities are not allowed in partitioned namespace.",
        )
    raise ArgumentError(
        f"{setting}: leave EnablePartitioning out, or set it to false.",
        azure="Partitioned entities are not allowed in non-partitioned namespace.",
    )


def size_divisor(partitions: int) -> int:
    """By what the chosen size of an entity is divided to get the size of each of its partitions.

    In Standard each of the 16 partitions has the chosen size (P-08). In Premium the chosen size is that of
    the whole entity (P-09). The number of partitions says where an entity was created; the tier may have
    changed since.
    """
    return 1 if partitions == STANDARD_PARTITIONS else partitions


def effective_max_size_mb(description: EntityDescription, partitions: int) -> int:
    """The size of the whole entity: what is shown, and what its partitions hold together."""
    return description.max_size_mb * partitions // size_divisor(partitions)


def max_message_bytes(description: EntityDescription) -> int:
    """The largest message of an entity."""
    return (description.max_message_size_kb or Tier.STANDARD.message_size_kb) * 1024


# A property that this kind of entity does not have counts as not used.
NOT_OFFERED: Final[Mapping[Tier, Properties]] = {
    Tier.BASIC: (
        REQUIRES_SESSION,
        REQUIRES_DUPLICATE_DETECTION,
        FORWARD_TO,
        FORWARD_DEAD_LETTERED_TO,
        AUTO_DELETE_ON_IDLE,
    ),
    Tier.STANDARD: (),
    Tier.PREMIUM: (ENABLE_EXPRESS,),
}


def check_values(description: EntityDescription) -> None:
    """Refuse values that no entity of this kind may have."""
    for row in description.PROPERTIES:
        row.check(description.label, getattr(description, row.field))
    exclusive = (ENABLE_EXPRESS, REQUIRES_DUPLICATE_DETECTION)
    if all(getattr(description, row.field, False) for row in exclusive):
        names = " and ".join(row.name for row in exclusive)
        raise ArgumentError(f"{description.label}: {names} cannot be combined.")


def refuse_immutable_changes(before: EntityDescription, after: EntityDescription) -> None:
    """Refuse a change to a property that is fixed at creation (P-07)."""
    for row in before.PROPERTIES:
        was, wanted = getattr(before, row.field), getattr(after, row.field, None)
        # None: the creator of the entity, or Config.json, does not say it.
        if row.fixed and wanted not in (None, was):
            kind = _kind(before)
            raise InvalidOperation(
                f"{before.label}: {row.name} is {was} since the {kind} was created and cannot be "
                f"changed to {wanted}. Delete the {kind} and create it again.",
                azure=_azure_on_fixed(row, kind.capitalize()),
            )


def _azure_on_fixed(row: Property, kind: str) -> str:
    if row is ENABLE_PARTITIONING:
        return f"Partitioning cannot be changed for {kind}. {HELP_LINK} ."
    return f"The value for the {row.name} property of an existing {kind} cannot be changed. {HELP_LINK} ."


def _kind(description: EntityDescription) -> str:
    return description.label.partition(" ")[0].lower()
