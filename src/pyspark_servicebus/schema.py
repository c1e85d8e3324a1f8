"""The columns: one row for each message, the same for every entity.

Columns for reading and for writing have the same names, so that rows that were read can
be written again. From message to row: decoding.py. From row to message:
encoding.py.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from bendybus.errors import ArgumentError
from pyspark_servicebus.options import ReadOptions

__all__ = ["ALL_COLUMNS", "BODY", "COLUMNS", "PROPERTIES", "RAW", "check_writable", "read_schema"]

BODY: Final = "body"
PROPERTIES: Final = "application_properties"
RAW: Final = "amqp_message"

_PROPERTIES_TYPE: Final = MapType(StringType(), StringType())

_READ: Final[dict[str, DataType]] = {
    "partition": IntegerType(),
    "sequence_number": LongType(),
    "enqueued_time": TimestampType(),
    "state": StringType(),
    BODY: BinaryType(),
    "message_id": StringType(),
    "session_id": StringType(),
    "partition_key": StringType(),
    "subject": StringType(),
    "correlation_id": StringType(),
    "content_type": StringType(),
    "to": StringType(),
    "reply_to": StringType(),
    "reply_to_session_id": StringType(),
    "time_to_live_ms": LongType(),
    "scheduled_enqueue_time": TimestampType(),
    "enqueued_sequence_number": LongType(),
    "delivery_count": IntegerType(),
    "dead_letter_source": StringType(),
    "dead_letter_reason": StringType(),
    "dead_letter_error_description": StringType(),
    PROPERTIES: _PROPERTIES_TYPE,
    RAW: BinaryType(),
}

# Text may be sent as it is. It is encoded as UTF-8.
_WRITABLE: Final[dict[str, tuple[type[DataType], ...]]] = {
    BODY: (BinaryType, StringType),
    RAW: (BinaryType,),
    "message_id": (StringType,),
    "session_id": (StringType,),
    "partition_key": (StringType,),
    "subject": (StringType,),
    "correlation_id": (StringType,),
    "content_type": (StringType,),
    "to": (StringType,),
    "reply_to": (StringType,),
    "reply_to_session_id": (StringType,),
    "time_to_live_ms": (LongType, IntegerType),
    "scheduled_enqueue_time": (TimestampType,),
    PROPERTIES: (MapType,),
}


# Types that a property of a message cannot have.
_NO_PROPERTY: Final = (
    *(DateType, DecimalType, TimestampNTZType),
    *(DayTimeIntervalType, YearMonthIntervalType),
)


COLUMNS: Final = tuple(_READ)
ALL_COLUMNS: Final = StructType([StructField(name, kind) for name, kind in _READ.items()])


def read_schema(options: ReadOptions) -> StructType:
    left_out = {
        name
        for name, included in (
            (BODY, options.include_body),
            (PROPERTIES, options.include_properties),
            (RAW, options.include_raw),
        )
        if not included
    }
    return StructType([StructField(name, kind) for name, kind in _READ.items() if name not in left_out])


def check_writable(schema: StructType) -> None:
    """Raise if rows of this schema cannot be written, before any row is read."""
    names = [field.name for field in schema.fields]
    if BODY not in names and RAW not in names:
        raise ArgumentError(
            f"Rows to be sent need a column '{BODY}' (or '{RAW}'); these have: {', '.join(names)}."
        )
    for field in schema.fields:
        allowed = _WRITABLE.get(field.name)
        if allowed is None:
            # Columns that only a reader has are ignored, so that rows that were read can be sent.
            if field.name not in _READ:
                raise ArgumentError(
                    f"Column '{field.name}' is unknown; messages are made from: {', '.join(_WRITABLE)}."
                )
        elif not isinstance(field.dataType, allowed):
            wanted = " or ".join(kind.typeName() for kind in allowed)
            raise ArgumentError(
                f"Column '{field.name}' must be {wanted}, not {field.dataType.simpleString()}."
            )
        elif isinstance(field.dataType, MapType) and not isinstance(field.dataType.keyType, StringType):
            raise ArgumentError(f"The keys of column '{field.name}' must be strings.")
        elif isinstance(field.dataType, MapType) and isinstance(field.dataType.valueType, _NO_PROPERTY):
            kind = field.dataType.valueType.simpleString()
            raise ArgumentError(
                f"The values of column '{field.name}' are of the type {kind}, which properties of messages "
                "do not have: cast them to string, double or timestamp."
            )
