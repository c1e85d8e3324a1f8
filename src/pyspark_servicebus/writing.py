"""Writing: rows into an entity. Every task has its own connection.

Delivery is at least once: a task that is retried sends its rows again, and sent messages
cannot be taken back. Ids are made from the position of the task in its query and
of the row in its task, so with duplicate detection the broker drops a
repeated row. Rows of one key keep their order. Messages are encoded in encoding.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bendybus.client import BusClient
from bendybus.errors import ArgumentError, InvalidOperation, NotSupported, Unauthorized
from pyspark_servicebus.encoding import MessageEncoder
from pyspark_servicebus.mistakes import told_plainly
from pyspark_servicebus.options import WriteOptions
from pyspark_servicebus.schema import check_writable

__all__ = ["BatchWriter", "SentMessages", "StreamWriter"]


@dataclass
class SentMessages(WriterCommitMessage):
    """The result of a task: how many messages were accepted."""

    count: int


def prepare(options: WriteOptions, schema: StructType, overwrite: bool) -> bool:
    """Raise if the rows cannot be written. Returns whether rows without a key must not share a batch."""
    check_writable(schema)
    if overwrite:
        raise ArgumentError("Messages cannot be overwritten; use the mode 'append'.")
    with BusClient(options.settings) as client:
        client.sender(options.entity).check()
        if options.batching != "auto":
            return options.batching == "false"
        return options.extensions and _keeps_rows_apart(client, options.entity)


def _keeps_rows_apart(client: BusClient, entity: str) -> bool:
    """With partitions and duplicate detection, the message id is a routing key."""
    try:
        info = client.management(entity).request("bendybus:partition-info", {})
    except (NotSupported, InvalidOperation, Unauthorized):
        # Azure, a topic, or a key that may only send: the user can set the option.
        return False
    assert info is not None
    return bool(info["duplicate-detection"]) and int(info["partition-count"]) > 1


@told_plainly()
def write(options: WriteOptions, apart: bool, prefix: str, batches: Iterator[pa.RecordBatch]) -> SentMessages:
    """On an executor: send one task's rows. Returns when all of them are accepted."""
    encoder = MessageEncoder(prefix if options.generate_ids else "", group_by_id=apart)
    with BusClient(options.settings) as client:
        sender = client.sender(options.entity)
        for batch in batches:
            for key, messages in encoder.groups(batch):
                sender.post(messages, key)
        sender.flush()
        return SentMessages(sender.sent)


def _task_number() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._apart = prepare(options, schema, overwrite)
        # Made once and copied to all tasks, so that repeated attempts have the same.
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessages:
        return write(self._options, self._apart, f"{self._job}/{_task_number()}", iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._apart = prepare(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessages:
        context = TaskContext.get()
        query = batch = ""
        if context is not None:
            # Spark passes neither to a writer, but its tasks have both among their properties.
            query = context.getLocalProperty("sql.streaming.queryId") or ""
            batch = context.getLocalProperty("streaming.sql.batchId") or ""
        prefix = f"{query}/{batch}/{_task_number()}" if query and batch else uuid.uuid4().hex
        return write(self._options, self._apart, prefix, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to do: everything was accepted when its task ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """What was sent stays sent. Spark will try the batch again."""
