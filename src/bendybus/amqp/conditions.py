"""Error conditions for a close, end, detach or rejected, as they are spelled on the wire.

First the standard's [AMQP 2.8.15-2.8.18, 4.5.8], then those of Service Bus.
Its clients choose an exception by these exact names. Which of our errors has
which condition: errors.py. All names here are public.
"""

from __future__ import annotations

from typing import Final

from bendybus.amqp.types import Symbol

# -- any scope ------------------------------------------------------------------

INTERNAL_ERROR: Final = Symbol("amqp:internal-error")
NOT_FOUND: Final = Symbol("amqp:not-found")
UNAUTHORIZED_ACCESS: Final = Symbol("amqp:unauthorized-access")
DECODE_ERROR: Final = Symbol("amqp:decode-error")
RESOURCE_LIMIT_EXCEEDED: Final = Symbol("amqp:resource-limit-exceeded")
NOT_ALLOWED: Final = Symbol("amqp:not-allowed")
INVALID_FIELD: Final = Symbol("amqp:invalid-field")
NOT_IMPLEMENTED: Final = Symbol("amqp:not-implemented")
RESOURCE_LOCKED: Final = Symbol("amqp:resource-locked")
PRECONDITION_FAILED: Final = Symbol("amqp:precondition-failed")
RESOURCE_DELETED: Final = Symbol("amqp:resource-deleted")
ILLEGAL_STATE: Final = Symbol("amqp:illegal-state")
FRAME_SIZE_TOO_SMALL: Final = Symbol("amqp:frame-size-too-small")

# -- connection -----------------------------------------------------------------

CONNECTION_FORCED: Final = Symbol("amqp:connection:forced")
FRAMING_ERROR: Final = Symbol("amqp:connection:framing-error")
CONNECTION_REDIRECT: Final = Symbol("amqp:connection:redirect")

# -- session --------------------------------------------------------------------

WINDOW_VIOLATION: Final = Symbol("amqp:session:window-violation")
ERRANT_LINK: Final = Symbol("amqp:session:errant-link")
HANDLE_IN_USE: Final = Symbol("amqp:session:handle-in-use")
UNATTACHED_HANDLE: Final = Symbol("amqp:session:unattached-handle")

# -- link -----------------------------------------------------------------------

DETACH_FORCED: Final = Symbol("amqp:link:detach-forced")
TRANSFER_LIMIT_EXCEEDED: Final = Symbol("amqp:link:transfer-limit-exceeded")
MESSAGE_SIZE_EXCEEDED: Final = Symbol("amqp:link:message-size-exceeded")
LINK_REDIRECT: Final = Symbol("amqp:link:redirect")
STOLEN: Final = Symbol("amqp:link:stolen")

# -- transactions ---------------------------------------------------------------

TRANSACTION_UNKNOWN_ID: Final = Symbol("amqp:transaction:unknown-id")
TRANSACTION_ROLLBACK: Final = Symbol("amqp:transaction:rollback")
TRANSACTION_TIMEOUT: Final = Symbol("amqp:transaction:timeout")

# -- Service Bus ----------------------------------------------------------------

TIMEOUT: Final = Symbol("com.microsoft:timeout")
SERVER_BUSY: Final = Symbol("com.microsoft:server-busy")
ARGUMENT_ERROR: Final = Symbol("com.microsoft:argument-error")
ARGUMENT_OUT_OF_RANGE: Final = Symbol("com.microsoft:argument-out-of-range")
AUTH_FAILED: Final = Symbol("com.microsoft:auth-failed")
ENTITY_DISABLED: Final = Symbol("com.microsoft:entity-disabled")
ENTITY_ALREADY_EXISTS: Final = Symbol("com.microsoft:entity-already-exists")
MESSAGE_LOCK_LOST: Final = Symbol("com.microsoft:message-lock-lost")
MESSAGE_NOT_FOUND: Final = Symbol("com.microsoft:message-not-found")
SESSION_LOCK_LOST: Final = Symbol("com.microsoft:session-lock-lost")
SESSION_CANNOT_BE_LOCKED: Final = Symbol("com.microsoft:session-cannot-be-locked")
SESSION_NOT_FOUND: Final = Symbol("com.microsoft:session-not-found")
OPERATION_CANCELLED: Final = Symbol("com.microsoft:operation-cancelled")
STORE_LOCK_LOST: Final = Symbol("com.microsoft:store-lock-lost")
PARTITION_NOT_OWNED: Final = Symbol("com.microsoft:partition-not-owned")
PUBLISHER_REVOKED: Final = Symbol("com.microsoft:publisher-revoked")
NO_MATCHING_SUBSCRIPTION: Final = Symbol("com.microsoft:no-matching-subscription")
MESSAGE_WAIT_TIMEOUT: Final = Symbol("com.microsoft:message-wait-timeout")

# Conditions a client may put in `rejected` to dead-letter a message.
DEAD_LETTER: Final = Symbol("com.microsoft:dead-letter")
