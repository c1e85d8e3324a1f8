"""The data source `servicebus`: Spark gets its readers and writers here.

They are created on the driver's machine. That is when options and schema are
checked and the entity is looked up, before any message is read or sent. Copies go to
the executors and connect there. Batches: reading.py. Streams: stream.py, and of
dead letters letters.py. Both ways of writing: writing.py. Tables of a catalog: tables.py.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from bendybus.errors import ArgumentError
from pyspark_servicebus.letters import LetterStreamReader, is_sub_queue
from pyspark_servicebus.mistakes import told_plainly
from pyspark_servicebus.options import ReadOptions, WriteOptions
from pyspark_servicebus.reading import BatchReader, FilteringBatchReader
from pyspark_servicebus.schema import read_schema
from pyspark_servicebus.stream import StreamReader
from pyspark_servicebus.tables import is_table, reading_options, with_options, writing_options
from pyspark_servicebus.writing import BatchWriter, StreamWriter

__all__ = ["ServiceBusDataSource"]


class ServiceBusDataSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Kept as it is: Spark's map ignores the case of names; a plain dict would not.
        self.options = options

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    @told_plainly()
    def schema(self) -> StructType:
        schema = read_schema(ReadOptions.parse(self.options))
        return with_options(schema, self.options) if is_table(self.options) else schema

    @told_plainly()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read_options(schema)
        kind = FilteringBatchReader if options.filter_pushdown else BatchReader
        return kind(options, schema.names)

    @told_plainly()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = self._read_options(schema)
        kind = LetterStreamReader if is_sub_queue(options.entity) else StreamReader
        return kind(options, schema.names)

    @told_plainly()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(WriteOptions.parse(writing_options(self.options, schema)), schema, overwrite)

    @told_plainly()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        return StreamWriter(WriteOptions.parse(writing_options(self.options, schema)), schema, overwrite)

    def _read_options(self, schema: StructType) -> ReadOptions:
        options = ReadOptions.parse(reading_options(self.options, schema))
        known = {(field.name, field.dataType.simpleString()) for field in read_schema(options).fields}
        for field in schema.fields:
            if (field.name, field.dataType.simpleString()) not in known:
                raise ArgumentError(
                    f"Column '{field.name}' ({field.dataType.simpleString()}) is none of this source's: "
                    + ", ".join(f"{name} {kind}" for name, kind in sorted(known))
                    + "."
                )
        return options
