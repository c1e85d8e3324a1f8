"""The one table of entity properties of queues, topics and subscriptions.

A row contains everything that concerns one property alone (property.py): its name on the wire, the field of
the description that holds it, its type, default and limits, and how people set and read it. ATOM
(admin/), Config.json (server/emulator_config.py), the management client, the command line with its
help, and docs/reference/properties.md are derived from it. What a tier offers and which properties
cannot be combined: entities.py.
"""

from __future__ import annotations

from typing import Final

from bendybus.domain.property import EntityStatus, Properties, Property, ValueType, check_one_of
from bendybus.errors import HELP_LINK

__all__ = [
    "ALL",
    "FIRST_WITH_PARTITIONS",
    "QUEUE",
    "SUBSCRIPTION",
    "TOPIC",
    "EntityStatus",
    "Properties",
    "Property",
    "ValueType",
    "check_one_of",
]


# "api-version=2013-10 or later" to create or see partitioned entities (P-10).
FIRST_WITH_PARTITIONS: Final = "2013-10"

ENABLE_PARTITIONING: Final = Property(
    name="EnablePartitioning",
    field="enable_partitioning",
    type=ValueType.BOOLEAN,
    default=False,
    option="partitioned",
    help="Spread the entity over 16 partitions; in Premium, over those of the namespace.",
    fixed=True,
    since=FIRST_WITH_PARTITIONS,
)
MAX_SIZE: Final = Property(
    name="MaxSizeInMegabytes",
    field="max_size_mb",
    type=ValueType.INTEGER,
    default=1024,
    allowed=(1024, 2048, 3072, 4096, 5120, 10_240, 20_480, 40_960, 81_920),
    standard=(1024, 2048, 3072, 4096, 5120),
    option="max-size",
    help="Maximum size of each partition; in Premium, of the entity.",
    metavar="MB",
)
MAX_MESSAGE_SIZE: Final = Property(
    name="MaxMessageSizeInKilobytes",
    field="max_message_size_kb",
    type=ValueType.INTEGER,
    default=256,
    # The tier sets the limit, and refuses higher values with Azure's text.
    allowed=range(1, 1 << 31),
    standard=range(1, 257),
    premium=range(1024, 102_401),
    option="max-message-size",
    help="Maximum size of a message.",
    metavar="KB",
    since="2021-05",
)
LOCK_DURATION: Final = Property(
    name="LockDuration",
    field="lock_duration_s",
    type=ValueType.DURATION,
    default=60,
    # Service Bus refuses locks of more than five minutes; clients renew past that.
    least_s=5,
    most_s=300,
    too_long=f"The supplied lock time exceeds the allowed maximum of '5' minutes. {HELP_LINK}",
    option="lock-duration",
    help="How long a received message stays locked.",
    metavar="DURATION",
)
REQUIRES_SESSION: Final = Property(
    name="RequiresSession",
    field="requires_session",
    type=ValueType.BOOLEAN,
    default=False,
    option="enable-session",
    help="Require a session id on every message.",
    fixed=True,
)
REQUIRES_DUPLICATE_DETECTION: Final = Property(
    name="RequiresDuplicateDetection",
    field="requires_duplicate_detection",
    type=ValueType.BOOLEAN,
    default=False,
    option="duplicate-detection",
    help="Drop messages whose id was seen before.",
    fixed=True,
)
DUPLICATE_DETECTION_WINDOW: Final = Property(
    name="DuplicateDetectionHistoryTimeWindow",
    field="duplicate_detection_window_s",
    type=ValueType.DURATION,
    default=600,
    least_s=20,
    most_s=7 * 86_400,
    option="duplicate-detection-window",
    help="How long a message id is remembered.",
    metavar="DURATION",
)
DEFAULT_MESSAGE_TTL: Final = Property(
    name="DefaultMessageTimeToLive",
    field="default_message_ttl_s",
    type=ValueType.DURATION_OR_UNLIMITED,
    least_s=1,
    option="default-message-ttl",
    help="Time to live of messages, which senders can shorten.",
    metavar="DURATION",
)
DEAD_LETTER_ON_EXPIRATION: Final = Property(
    name="DeadLetteringOnMessageExpiration",
    field="dead_letter_on_expiry",
    type=ValueType.BOOLEAN,
    default=False,
    option="dead-letter-on-expiration",
    help="Dead-letter messages that have expired.",
)
DEAD_LETTER_ON_FILTER_ERROR: Final = Property(
    name="DeadLetteringOnFilterEvaluationExceptions",
    field="dead_letter_on_filter_errors",
    type=ValueType.BOOLEAN,
    default=True,
    option="dead-letter-on-filter-error",
    help="Dead-letter messages for which a filter fails.",
)
MAX_DELIVERY_COUNT: Final = Property(
    name="MaxDeliveryCount",
    field="max_delivery_count",
    type=ValueType.INTEGER,
    default=10,
    # The largest signed 32-bit number. The limit of 2000 in Azure's portal applies only to the portal.
    allowed=range(1, 2**31),
    option="max-delivery-count",
    help="Dead-letter a message after this many deliveries.",
    metavar="N",
)
AUTO_DELETE_ON_IDLE: Final = Property(
    name="AutoDeleteOnIdle",
    field="auto_delete_on_idle_s",
    type=ValueType.DURATION_OR_UNLIMITED,
    least_s=300,
    option="auto-delete-on-idle",
    help="Delete the entity after it has been idle for this long.",
    metavar="DURATION",
)
FORWARD_TO: Final = Property(
    name="ForwardTo",
    field="forward_to",
    type=ValueType.ENTITY,
    option="forward-to",
    help="Forward messages to this queue or topic.",
    metavar="ENTITY",
    removable=True,
)
FORWARD_DEAD_LETTERED_TO: Final = Property(
    name="ForwardDeadLetteredMessagesTo",
    field="forward_dead_lettered_to",
    type=ValueType.ENTITY,
    option="forward-dead-lettered-to",
    help="Forward dead letters to this queue or topic.",
    metavar="ENTITY",
    removable=True,
)
STATUS: Final = Property(
    name="Status",
    field="status",
    type=ValueType.STATUS,
    default=EntityStatus.ACTIVE,
    option="status",
    help="Which operations clients may use.",
)
ENABLE_EXPRESS: Final = Property(
    name="EnableExpress",
    field="enable_express",
    type=ValueType.BOOLEAN,
    default=False,
    help="Kept and shown. Messages are stored on disk all the same.",
    in_config=False,
)
ENABLE_BATCHED_OPERATIONS: Final = Property(
    name="EnableBatchedOperations",
    field="enable_batched_operations",
    type=ValueType.BOOLEAN,
    default=True,
    help="Kept and shown. The server gathers writes all the same.",
    in_config=False,
)
USER_METADATA: Final = Property(
    name="UserMetadata",
    field="user_metadata",
    type=ValueType.TEXT,
    allowed=range(1025),
    option="user-metadata",
    help="Free text, for people.",
    metavar="TEXT",
    removable=True,
)

RETRY_DELAY: Final = Property(
    name="RetryDelay",
    field="retry_delay_s",
    type=ValueType.DURATION,
    default=0,
    least_s=0,
    most_s=86_400,
    option="retry-delay",
    help="How long an abandoned message waits before it is delivered again.",
    metavar="DURATION",
    ours=True,
)
RETRY_DELAY_FACTOR: Final = Property(
    name="RetryDelayFactor",
    field="retry_delay_factor",
    type=ValueType.INTEGER,
    default=2,
    allowed=range(1, 101),
    option="retry-delay-factor",
    help="The factor by which this delay grows with each further delivery.",
    metavar="N",
    ours=True,
)
RETRY_DELAY_MAX: Final = Property(
    name="RetryDelayMax",
    field="retry_delay_max_s",
    type=ValueType.DURATION,
    default=600,
    least_s=1,
    most_s=7 * 86_400,
    option="retry-delay-max",
    help="The longest delay of an abandoned message.",
    metavar="DURATION",
    ours=True,
)

CATCH_UNMATCHED: Final = Property(
    name="CatchUnmatched",
    field="catch_unmatched",
    type=ValueType.BOOLEAN,
    default=False,
    option="catch-unmatched",
    help="Take only messages that no other subscription of the topic takes.",
    ours=True,
)

KEEP_COMPLETED: Final = Property(
    name="KeepCompleted",
    field="keep_completed_s",
    type=ValueType.DURATION,
    default=0,
    least_s=0,
    most_s=30 * 86_400,
    option="keep-completed",
    help="How long completed messages are kept, to be put back by 'bendybus replay'.",
    metavar="DURATION",
    ours=True,
)

# In the order used by help and the reference page.
ALL: Final[Properties] = (
    ENABLE_PARTITIONING,
    MAX_SIZE,
    MAX_MESSAGE_SIZE,
    LOCK_DURATION,
    REQUIRES_SESSION,
    REQUIRES_DUPLICATE_DETECTION,
    DUPLICATE_DETECTION_WINDOW,
    DEFAULT_MESSAGE_TTL,
    DEAD_LETTER_ON_EXPIRATION,
    DEAD_LETTER_ON_FILTER_ERROR,
    MAX_DELIVERY_COUNT,
    AUTO_DELETE_ON_IDLE,
    FORWARD_TO,
    FORWARD_DEAD_LETTERED_TO,
    STATUS,
    ENABLE_EXPRESS,
    ENABLE_BATCHED_OPERATIONS,
    USER_METADATA,
    RETRY_DELAY,
    RETRY_DELAY_FACTOR,
    RETRY_DELAY_MAX,
    KEEP_COMPLETED,
    CATCH_UNMATCHED,
)

# Each kind in the order in which the real service writes its properties.
QUEUE: Final[Properties] = (
    LOCK_DURATION,
    MAX_SIZE,
    REQUIRES_DUPLICATE_DETECTION,
    REQUIRES_SESSION,
    DEFAULT_MESSAGE_TTL,
    DEAD_LETTER_ON_EXPIRATION,
    DUPLICATE_DETECTION_WINDOW,
    MAX_DELIVERY_COUNT,
    ENABLE_BATCHED_OPERATIONS,
    STATUS,
    FORWARD_TO,
    USER_METADATA,
    AUTO_DELETE_ON_IDLE,
    ENABLE_PARTITIONING,
    FORWARD_DEAD_LETTERED_TO,
    ENABLE_EXPRESS,
    MAX_MESSAGE_SIZE,
    RETRY_DELAY,
    RETRY_DELAY_FACTOR,
    RETRY_DELAY_MAX,
    KEEP_COMPLETED,
)
TOPIC: Final[Properties] = (
    DEFAULT_MESSAGE_TTL,
    MAX_SIZE,
    REQUIRES_DUPLICATE_DETECTION,
    DUPLICATE_DETECTION_WINDOW,
    ENABLE_BATCHED_OPERATIONS,
    STATUS,
    USER_METADATA,
    AUTO_DELETE_ON_IDLE,
    ENABLE_PARTITIONING,
    ENABLE_EXPRESS,
    MAX_MESSAGE_SIZE,
)
SUBSCRIPTION: Final[Properties] = (
    LOCK_DURATION,
    REQUIRES_SESSION,
    DEFAULT_MESSAGE_TTL,
    DEAD_LETTER_ON_EXPIRATION,
    DEAD_LETTER_ON_FILTER_ERROR,
    MAX_DELIVERY_COUNT,
    ENABLE_BATCHED_OPERATIONS,
    STATUS,
    FORWARD_TO,
    USER_METADATA,
    FORWARD_DEAD_LETTERED_TO,
    AUTO_DELETE_ON_IDLE,
    RETRY_DELAY,
    RETRY_DELAY_FACTOR,
    RETRY_DELAY_MAX,
    KEEP_COMPLETED,
    CATCH_UNMATCHED,
)
