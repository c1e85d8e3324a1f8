"""The data source `servicebus`: Spark gets its readers and writers here.

They are created on the driver's machine. That is when options and schema are
checked and the entity is looked up, before any message is read or sent. Copies go to
the executors and connect there. Batches: reading.py. Streams: stream.py. Both
ways of writing: writing.py.
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
from pyspark_servicebus.options import ReadOptions, WriteOptions
from pyspark_servicebus.reading import BatchReader, FilteringBatchReader
from pyspark_servicebus.schema import read_schema
from pyspark_servicebus.stream import StreamReader
from pyspark_servicebus.writing import BatchWriter, StreamWriter

__all__ = ["ServiceBusDataSource"]


class ServiceBusDataSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Kept as it is: Spark's map ignores the case of names; a plain dict would not.
        self.options = options

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> StructType:
        return read_schema(ReadOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read_options(schema)
        kind = FilteringBatchReader if options.filter_pushdown else BatchReader
        return kind(options, schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(self._read_options(schema), schema.names)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(WriteOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        return StreamWriter(WriteOptions.parse(self.options), schema, overwrite)

    def _read_options(self, schema: StructType) -> ReadOptions:
        options = ReadOptions.parse(self.options)
        known = {(field.name, field.dataType.simpleString()) for field in read_schema(options).fields}
        for field in schema.fields:
            if (field.name, field.dataType.simpleString()) not in known:
                raise ArgumentError(
                    f"Column '{field.name}' ({field.dataType.simpleString()}) is none of this source's: "
                    + ", ".join(f"{name} {kind}" for name, kind in sorted(known))
                    + "."
                )
        return options
