"""The data folder: one process at a time, stores that never get fewer, a key made once."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bendybus.errors import ConfigError, DataFolderInUse, SchemaTooNew, StoreCorrupted
from bendybus.store.folder import DataFolder, StoreList

HOLDER = """
import sys
from pathlib import Path
from bendybus.store.folder import DataFolder

DataFolder(Path(sys.argv[1])).open()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    folder = DataFolder(tmp_path / "deep" / "data")
    folder.open()
    yield folder
    folder.close()


def make_stores(folder: DataFolder, count: int) -> None:
    for path in folder.store_paths(count):
        path.touch()
    folder.record_stores(count)


def test_the_folder_is_made_for_its_owner_alone(folder: DataFolder) -> None:
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_second_process_is_refused_by_folder_and_holder_until_the_first_is_gone(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        folder = DataFolder(tmp_path)
        with pytest.raises(DataFolderInUse) as refused:
            folder.open()
        assert str(tmp_path) in str(refused.value)
        assert f"pid {holder.pid}" in str(refused.value)
        holder.kill()
        holder.wait()
        folder.open()
        folder.close()


def test_a_folder_can_be_opened_again_after_closing(folder: DataFolder) -> None:
    folder.close()
    folder.open()
    second = DataFolder(folder.path)
    with pytest.raises(DataFolderInUse, match=f"pid {os.getpid()}"):
        second.open()


def test_a_path_that_cannot_be_a_folder_is_a_setting_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file"):
        DataFolder(tmp_path / "file").open()


def test_stores_have_stable_names_and_may_grow_in_number(folder: DataFolder) -> None:
    make_stores(folder, 2)
    assert [path.name for path in folder.store_paths(3)] == ["store-0.db", "store-1.db", "store-2.db"]
    make_stores(folder, 3)
    assert len(folder.store_paths()) == 3


@pytest.mark.parametrize("asked", [1, 0])
def test_fewer_stores_than_there_are_is_refused(folder: DataFolder, asked: int) -> None:
    make_stores(folder, 2)
    with pytest.raises(ConfigError, match=f"has 2 messaging stores, and {asked} are asked for"):
        folder.store_paths(asked)


def test_a_store_that_has_vanished_is_still_one_of_the_folders(folder: DataFolder) -> None:
    make_stores(folder, 2)
    (folder.path / "store-1.db").unlink()
    assert [path.name for path in folder.store_paths()] == ["store-0.db", "store-1.db"]


def test_a_start_cut_short_before_its_stores_were_made_can_be_repeated(folder: DataFolder) -> None:
    folder.store_paths(4)
    assert len(folder.store_paths(4)) == 4


def test_a_newer_folder_is_refused(folder: DataFolder) -> None:
    folder.close()
    (folder.path / "folder.json").write_text(json.dumps({"format": 2, "stores": 1}))
    with pytest.raises(SchemaTooNew, match=r"folder\.json has format 2; .* up to 1"):
        folder.open()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": "x", "stores": 1}'])
def test_a_damaged_folder_file_is_reported_by_name(folder: DataFolder, text: str) -> None:
    folder.close()
    (folder.path / "folder.json").write_text(text)
    with pytest.raises(StoreCorrupted, match=r"folder\.json"):
        folder.open()


def test_the_root_key_is_made_once_and_kept_for_its_owner_alone(folder: DataFolder) -> None:
    key = folder.root_key()
    assert len(base64.b64decode(key, validate=True)) == 32
    folder.close()
    again = DataFolder(folder.path)
    again.open()
    assert again.root_key() == key
    again.close()
    assert (folder.path / "root.key").stat().st_mode & 0o777 == 0o600


def test_an_empty_root_key_is_reported_by_name(folder: DataFolder) -> None:
    (folder.path / "root.key").touch()
    with pytest.raises(StoreCorrupted, match=r"root\.key"):
        folder.root_key()


def test_namespaces_are_written_down_once_there_are_several(folder: DataFolder) -> None:
    assert folder.namespaces() == []
    other = folder.of_namespace("Bank")
    other.open()
    folder.record_namespaces(["shop", "Bank"])
    assert folder.namespaces() == ["shop", "Bank"]
    assert other.path == folder.path / "namespaces" / "bank"
    other.close()


def test_a_namespace_whose_folder_is_gone_is_told(folder: DataFolder) -> None:
    folder.of_namespace("bank").path.mkdir(parents=True)
    folder.record_namespaces(["shop", "bank"])
    folder.of_namespace("bank").path.rmdir()
    with pytest.raises(StoreCorrupted, match="namespaces/bank of a namespace is missing"):
        folder.namespaces()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "names": 5}'])
def test_a_damaged_list_of_namespaces_is_told(folder: DataFolder, text: str) -> None:
    (folder.path / "namespaces.json").write_text(text)
    with pytest.raises(StoreCorrupted, match=r"namespaces\.json is damaged"):
        folder.namespaces()


def test_a_list_of_namespaces_from_the_future_is_told(folder: DataFolder) -> None:
    (folder.path / "namespaces.json").write_text('{"format": 9, "names": ["a"]}')
    with pytest.raises(SchemaTooNew, match="format 9"):
        folder.namespaces()


def test_the_list_of_stores_is_kept_for_its_owners_eyes_only(folder: DataFolder) -> None:
    assert folder.store_list() == StoreList()
    kept = StoreList({"b": "postgresql://ann:hush@host/db"}, frozenset({"store-0"}))
    folder.keep_store_list(kept)
    assert folder.store_list() == kept
    assert (folder.path / "stores.json").stat().st_mode & 0o777 == 0o600
    assert "hush" not in repr(kept)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"attached": ["hush"], "retired": []}', '{"attached": 1']
)
def test_a_damaged_list_of_stores_is_named_and_not_quoted(folder: DataFolder, content: str) -> None:
    (folder.path / "stores.json").write_text(content)
    with pytest.raises(StoreCorrupted, match=r"stores\.json is damaged") as refused:
        folder.store_list()
    assert "hush" not in str(refused.value)
