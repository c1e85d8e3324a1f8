"""Where a pipeline keeps its position: a folder on any file system that Spark knows, written atomically.

`pipeline.json` says which pipeline the checkpoint belongs to. A run that would continue from the position
of another pipeline is refused before it reads anything. The other files belong to the pipeline or to
Spark. Files are replaced by renaming, so a reader finds the old one or the new one. A pipeline that runs
without Spark has its folder on this machine.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from bendybus.errors import ArgumentError, ConfigError, NotSupported

__all__ = [
    "Folder",
    "LocalFolder",
    "clear_false_start",
    "default_checkpoint",
    "is_local",
    "own_checkpoint",
    "own_local_checkpoint",
    "query_name",
]

IDENTITY: Final = "pipeline.json"
VERSION: Final = 1


def is_local(path: str) -> bool:
    """Whether Python finds this folder without Spark."""
    return "://" not in path and not path.startswith("file:")


class LocalFolder:
    """A folder of this machine, for pipelines that run without Spark. `Folder` can read it later."""

    def __init__(self, path: str) -> None:
        self._root = Path(path).absolute()

    @property
    def uri(self) -> str:
        return self._root.as_uri()

    def exists(self, name: str = "") -> bool:
        return (self._root / name).exists()

    def read_json(self, name: str) -> dict[str, Any] | None:
        try:
            text = (self._root / name).read_text()
        except FileNotFoundError:
            return None
        return _object(text, f"{self._root / name}")

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        fresh = self._root / f".{name}.{uuid.uuid4().hex}"
        fresh.write_text(json.dumps(value, indent=2))
        # Hadoop keeps a checksum of what it wrote, and would find that the new text does not match.
        (self._root / f".{name}.crc").unlink(missing_ok=True)
        fresh.replace(self._root / name)


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise ArgumentError(f"'{where}' is damaged: it does not hold a JSON object.")
    return read


class Folder:
    """Files of one folder, through Hadoop's file systems: local, HDFS, object stores."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        if not hasattr(spark, "sparkContext"):
            raise NotSupported(
                "A pipeline needs a session with a Spark of its own, as spark_session() makes: over Spark "
                "Connect it could reach neither checkpoints nor jobs."
            )
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

    def files(self, name: str) -> list[str]:
        """The names of the files in a subfolder; none if it does not exist."""
        if not self.exists(name):
            return []
        return sorted(str(each.getPath().getName()) for each in self._files.listStatus(self._at(name)))

    def remove(self, name: str) -> None:
        self._files.delete(self._at(name), True)

    def read_json(self, name: str) -> dict[str, Any] | None:
        if not self.exists(name):
            return None
        stream = self._files.open(self._at(name))
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return _object(text, f"{self.uri}/{name}")

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        uri = self._root.toUri()
        if uri.getScheme() == "file":
            # Hadoop removes the old file before it renames the new one; a kill in between would leave none.
            LocalFolder(str(uri.getPath())).write_json(name, value)
            return
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
    _own(folder, path, identity)
    return folder


def own_local_checkpoint(path: str, identity: Mapping[str, Any]) -> LocalFolder:
    """The same on this machine, without Spark."""
    folder = LocalFolder(path)
    _own(folder, path, identity)
    return folder


def _own(folder: Folder | LocalFolder, path: str, identity: Mapping[str, Any]) -> None:
    wanted = {"version": VERSION, **identity}
    found = folder.read_json(IDENTITY)
    if found is None:
        if folder.exists("offsets") or folder.exists("metadata"):
            raise ConfigError(
                f"the checkpoint '{path}' was made by another query than a pipeline: use another one"
            )
        folder.write_json(IDENTITY, {**wanted, "id": uuid.uuid4().hex})
        return
    for name in sorted({*wanted, *found} - {"id"}):
        if found.get(name) != wanted.get(name):
            raise ConfigError(
                f"the checkpoint '{path}' is of a pipeline with {name} = {found.get(name)!r}, "
                f"not {wanted.get(name)!r}: use another one"
            )


def clear_false_start(folder: Folder) -> None:
    """Remove what was left by a run that was interrupted while it recorded its first batch.

    Spark refuses to begin a query while there is any file in these folders, though nothing was planned.
    """
    logs = ("offsets", "commits")
    if not any(name.isdecimal() for log in logs for name in folder.files(log)):
        for log in logs:
            folder.remove(log)


def query_name(folder: Folder) -> str:
    """A name that distinguishes the query of this checkpoint from all others, permanently."""
    identity = folder.read_json(IDENTITY)
    assert identity is not None, "written by own_checkpoint"
    return f"bendybus-{identity['id']}"
