"""Tables: `CREATE TABLE orders USING servicebus OPTIONS (...)` in a catalog of Spark's.

Spark passes the options to a Python data source when the table is created, and never again: a query on the
table gets the table's schema and only its own options. So the options of a table are kept in the schema, in
the metadata of a column that every table has. Metadata travels with the rows, into the footers of Parquet
files for example, so a table cannot hold a connection string, only the name of a file or variable that does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from bendybus.errors import ArgumentError
from pyspark_servicebus.option_names import has_table_options, own_options
from pyspark_servicebus.options import COMMON, CONNECTIONS, WRITE

__all__ = ["is_table", "reading_options", "with_options", "writing_options"]

_KEY: Final = "servicebus.options"
# The first column that every table has.
_COLUMN: Final = "partition"

is_table = has_table_options


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a new table, which keeps its options."""
    own = own_options(options)
    if "connectionstring" in {name.lower() for name in own}:
        raise ArgumentError(
            "A table cannot keep the option 'connectionString', which would travel with its rows: put the "
            "connection string into a file or a variable, and name that with 'connectionStringFile' or "
            "'connectionStringEnv'."
        )
    return StructType(
        [
            StructField(each.name, each.dataType, metadata={_KEY: json.dumps(own, sort_keys=True)})
            if each.name == _COLUMN
            else each
            for each in schema.fields
        ]
    )


def reading_options(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The table's options, and those of the query, which override them."""
    if _names_a_namespace(options):
        return options
    return {**_kept(schema), **{name.lower(): value for name, value in options.items()}}


def writing_options(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options of the table that rows are inserted into.

    `INSERT` passes no options at all. With any, these are rows that were read from a table and go elsewhere.
    """
    if options:
        return options
    for_writing = {name.lower() for name in (*COMMON, *WRITE)}
    return {name: value for name, value in _kept(schema).items() if name in for_writing}


def _kept(schema: StructType) -> dict[str, str]:
    for each in schema.fields:
        if _KEY in each.metadata:
            return {name.lower(): value for name, value in json.loads(each.metadata[_KEY]).items()}
    return {}


def _names_a_namespace(options: Mapping[str, str]) -> bool:
    return bool({name.lower() for name in options} & {name.lower() for name in CONNECTIONS})
