"""Where a pipeline keeps its position: a folder on any file system that Spark knows, written atomically.

`pipeline.json` says which pipeline the checkpoint belongs to. A run that would continue from the position
of another pipeline is refused before it reads anything. The other files belong to the pipeline or to
Spark. Files are replaced by renaming, so a reader finds the old one or the new one.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from bendybus.errors import ArgumentError, ConfigError

__all__ = ["Folder", "default_checkpoint", "own_checkpoint", "query_name"]

IDENTITY: Final = "pipeline.json"
VERSION: Final = 1


class Folder:
    """Files of one folder, through Hadoop's file systems: local, HDFS, object stores."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        # Python has no other access to them, and Spark Connect has none at all.
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        self._gateway: Any = spark.sparkContext._gateway
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        given = jvm.org.apache.hadoop.fs.Path(path)
        self._files = given.getFileSystem(configuration)
        self._root = self._files.makeQualified(given)
        self._context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._root.toUri(), configuration)

    @property
    def uri(self) -> str:
        return str(self._root.toString())

    def exists(self, name: str = "") -> bool:
        return bool(self._files.exists(self._at(name) if name else self._root))

    def folders(self) -> list[str]:
        """The names of its subfolders."""
        if not self.exists():
            return []
        found = self._files.listStatus(self._root)
        return sorted(str(each.getPath().getName()) for each in found if each.isDirectory())

    def read_json(self, name: str) -> dict[str, Any] | None:
        if not self.exists(name):
            return None
        stream = self._files.open(self._at(name))
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        try:
            read = json.loads(text)
        except ValueError:
            read = None
        if not isinstance(read, dict):
            raise ArgumentError(f"'{self.uri}/{name}' is damaged: it does not hold a JSON object.")
        return read

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self._files.mkdirs(self._root)
        fresh = self._at(f".{name}.{uuid.uuid4().hex}")
        stream = self._files.create(fresh, True)
        stream.write(json.dumps(value, indent=2).encode())
        stream.close()
        rename = getattr(self._jvm, "org.apache.hadoop.fs.Options$Rename")
        overwriting = self._gateway.new_array(rename, 1)
        overwriting[0] = rename.OVERWRITE
        self._context.rename(fresh, self._at(name), overwriting)

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)


def default_checkpoint(kind: str, *entities: str) -> str:
    """A folder in the current directory, named after the pipeline and its entities."""
    names = "-to-".join(entity.replace("/", "_").replace("$", "") for entity in entities)
    return os.path.join("checkpoints", f"{kind}-{names}".lower())


def own_checkpoint(spark: SparkSession, path: str, identity: Mapping[str, Any]) -> Folder:
    """The folder of a checkpoint that is new or belongs to this pipeline. Otherwise raises."""
    folder = Folder(spark, path)
    wanted = {"version": VERSION, **identity}
    found = folder.read_json(IDENTITY)
    if found is None:
        if folder.exists("offsets") or folder.exists("metadata"):
            raise ConfigError(
                f"the checkpoint '{path}' was made by another query than a pipeline: use another one"
            )
        folder.write_json(IDENTITY, {**wanted, "id": uuid.uuid4().hex})
        return folder
    for name in sorted({*wanted, *found} - {"id"}):
        if found.get(name) != wanted.get(name):
            raise ConfigError(
                f"the checkpoint '{path}' is of a pipeline with {name} = {found.get(name)!r}, "
                f"not {wanted.get(name)!r}: use another one"
            )
    return folder


def query_name(folder: Folder) -> str:
    """A name that distinguishes the query of this checkpoint from all others, permanently."""
    identity = folder.read_json(IDENTITY)
    assert identity is not None, "written by own_checkpoint"
    return f"bendybus-{identity['id']}"
