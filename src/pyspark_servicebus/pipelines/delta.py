"""A Delta table as the sink of a stream, through delta-rs: no jar, and exact for every reader.

Tasks write Parquet files that are not visible yet. The commit of a batch adds them to the table's
log, together with the batch's number under the query's name. A repeated batch finds
its number there and adds nothing (delta-rs does not refuse it, so this module does).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction
from pyarrow import fs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bendybus.errors import ArgumentError

__all__ = ["DeltaSink", "delta_files", "delta_location"]

PARTITIONED_BY: Final = ["date", "partition"]

# More files do no harm; a row group of this size is efficient to read.
FILE_BYTES_MAX: Final = 128 * 1024 * 1024


def delta_location(uri: str) -> str:
    """Where delta-rs and Arrow find a Hadoop path."""
    if uri.startswith("file:"):
        return "/" + uri.removeprefix("file:").lstrip("/")
    return uri.replace("s3a://", "s3://", 1)


def delta_files(uri: str) -> list[str]:
    """The data files of the table's newest version, as Spark reads them."""
    base = uri.rstrip("/")
    location = delta_location(uri).rstrip("/")
    files = DeltaTable(location).file_uris()
    return [base + each.removeprefix("file://").removeprefix(location) for each in files]


class DeltaSink(DataSource):
    """`writeStream.format("servicebus-delta")` with the options `table` and `query`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        return "servicebus-delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's
        table, query = self.options.get("table"), self.options.get("query")
        if not table or not query:
            raise ArgumentError("A Delta sink needs the options 'table' and 'query'.")
        return DeltaWriter(delta_location(table), query, to_arrow_schema(schema, timezone="UTC"))


@dataclass
class WrittenFiles(WriterCommitMessage):
    """What a task has written: path below the table, size, date and partition, rows."""

    files: list[tuple[str, int, str, str, int]]


class DeltaWriter(DataSourceStreamArrowWriter):
    def __init__(self, table: str, query: str, schema: pa.Schema) -> None:
        self._table = table
        self._query = query
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """On an executor: files by date and partition, in the order of the rows."""
        written: list[tuple[str, int, str, str, int]] = []
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in iterator:
            waiting.append(batch)
            size += batch.nbytes
            if size >= FILE_BYTES_MAX:
                written += self._store(pa.Table.from_batches(waiting))
                waiting, size = [], 0
        if waiting:
            written += self._store(pa.Table.from_batches(waiting))
        return WrittenFiles(written)

    def _store(self, rows: pa.Table) -> Iterator[tuple[str, int, str, str, int]]:
        system, root = _file_system(self._table)
        for place in rows.select(PARTITIONED_BY).group_by(PARTITIONED_BY).aggregate([]).to_pylist():
            date, partition = str(place["date"]), str(place["partition"])
            chosen = pc.and_(
                pc.equal(rows["date"], place["date"]), pc.equal(rows["partition"], place["partition"])
            )
            part = rows.filter(chosen).drop_columns(PARTITIONED_BY)
            path = f"date={date}/partition={partition}/part-{uuid.uuid4().hex}.parquet"
            full = f"{root}/{path}"
            system.create_dir(full.rpartition("/")[0], recursive=True)
            pq.write_table(part, full, filesystem=system, compression="zstd")
            yield path, system.get_file_info(full).size, date, partition, part.num_rows

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """On the driver's machine: add the batch to the table, unless it is there already."""
        table = self._opened()
        known = table.transaction_version(self._query)
        if known is not None and known >= batchId:
            return
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=path,
                size=size,
                partition_values={"date": date, "partition": partition},
                modification_time=now_ms,
                data_change=True,
                stats=f'{{"numRecords": {rows}}}',
            )
            for message in messages
            if isinstance(message, WrittenFiles)
            for path, size, date, partition, rows in message.files
        ]
        table.create_write_transaction(
            actions,
            mode="append",
            schema=self._schema,
            partition_by=PARTITIONED_BY,
            commit_properties=CommitProperties(app_transactions=[Transaction(self._query, batchId)]),
        )

    def _opened(self) -> DeltaTable:
        return DeltaTable.create(self._table, self._schema, mode="ignore", partition_by=PARTITIONED_BY)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Its files are in no log, so they are not visible. `DeltaTable.vacuum` removes them later."""


def _file_system(table: str) -> tuple[fs.FileSystem, str]:
    if "://" in table:
        system, root = fs.FileSystem.from_uri(table)
        return system, root
    return fs.LocalFileSystem(), table
