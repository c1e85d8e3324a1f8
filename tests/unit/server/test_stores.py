"""Stores by number in the data folder, or by URL wherever they are."""

from __future__ import annotations

import pytest

from bendybus.errors import ConfigError, StoreUnavailable
from bendybus.server.settings import STORES_DEFAULT, Settings
from bendybus.server.stores import examine_stores, messaging_stores, namespace_id
from bendybus.store.folder import DataFolder, StoreList
from bendybus.store.memory import MemoryStore
from bendybus.store.sqlite.catalog import SqliteCatalog


@pytest.fixture
def folder(tmp_path):
    folder = DataFolder(tmp_path / "data")
    folder.open()
    yield folder
    folder.close()


def names(settings: Settings, folder: DataFolder) -> list[str]:
    return [store.name for store in messaging_stores(settings, folder)]


def test_a_new_folder_gets_the_default_number_of_stores(folder):
    assert len(names(Settings(), folder)) == STORES_DEFAULT


def test_a_known_folder_keeps_the_stores_it_has(folder):
    for store in messaging_stores(Settings(stores=6), folder):
        store.open()
        store.close()
    folder.record_stores(6)
    assert len(names(Settings(), folder)) == 6


def test_stores_by_url_take_the_place_of_the_folders_own(folder, tmp_path):
    urls = tuple(f"sqlite://{tmp_path}/{name}.db" for name in ("left", "right"))
    assert names(Settings(store_urls=urls), folder) == ["left", "right"]


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://host/0", "'redis' is not a kind of store"),
        ("sqlite://relative.db", "absolute path"),
        ("sqlite:///", "absolute path"),
        ("sqlite:///no/such/folder/x.db", "does not exist"),
    ],
)
def test_a_url_that_cannot_be_meant_is_named(folder, url, complaint):
    with pytest.raises(ConfigError, match=complaint):
        names(Settings(store_urls=(url,)), folder)


def test_a_store_that_holds_partitions_may_be_on_a_disk_that_is_not_there(folder, tmp_path):
    settings = Settings(store_urls=(f"sqlite://{tmp_path}/mnt/one.db",))
    (store,) = messaging_stores(settings, folder, placed={"one"})
    with pytest.raises(StoreUnavailable, match=r"one\.db is not there"):
        store.open()
    (tmp_path / "mnt").mkdir()
    with pytest.raises(StoreUnavailable):
        store.open()
    assert list((tmp_path / "mnt").iterdir()) == [], "an empty one must not take its place"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:hush@host",
        "postgresql://ann:hush@hush@host/db",
        "postgresql://ann:hush/hush@host:port/db",
        "postgresql://ann:hush@[::1/db",
        "postgresql://ann@host/db?password=hush&nonsense=1",
        "postgresql://ann:hush@host/db?nonsense=1",
        "redis://ann:hush@host/0",
        "//ann:hush@host/0",
    ],
)
def test_a_refused_url_is_shown_without_its_password(folder, url):
    settings = Settings(store_urls=(url,))
    with pytest.raises(ConfigError, match="--store ") as refused:
        names(settings, folder)
    assert "hush" not in f"{refused.value} {refused.value.__cause__!r} {settings!r}"


def test_kinds_of_stores_may_be_mixed(folder, tmp_path):
    urls = (f"sqlite://{tmp_path}/left.db", "postgresql://host/right", "postgres://host/db?name=third")
    assert names(Settings(store_urls=urls), folder) == ["left", "right", "third"]


def test_a_namespace_keeps_the_identity_that_its_stores_know_it_by(tmp_path):
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.open()
    catalog.describe_namespace({"created_at": 7})
    assert namespace_id(catalog) == namespace_id(catalog) != ""
    assert catalog.namespace()["created_at"] == 7
    catalog.close()


def test_stores_that_are_one_are_refused_and_one_that_is_away_is_not():
    away = MemoryStore("away")
    away.outage = StoreUnavailable("gone")
    examine_stores([away, MemoryStore("one"), MemoryStore("two")], "ours")
    one = MemoryStore("one")
    with pytest.raises(ConfigError, match="'one' and 'one' are one and the same"):
        examine_stores([one, away, one], "ours")


def test_the_same_store_twice_is_refused(folder, tmp_path):
    url = f"sqlite://{tmp_path}/one.db"
    with pytest.raises(ConfigError, match="another store is already called 'one'"):
        names(Settings(store_urls=(url, url)), folder)


def test_a_number_and_urls_exclude_each_other(tmp_path):
    with pytest.raises(ConfigError, match="--stores and --store"):
        Settings(stores=2, store_urls=(f"sqlite://{tmp_path}/one.db",))


def test_what_was_attached_is_there_without_being_named_and_what_was_retired_is_not(folder, tmp_path):
    for store in messaging_stores(Settings(stores=3), folder):
        store.open()
        store.close()
    folder.record_stores(3)
    url = f"sqlite://{tmp_path}/far.db"
    folder.keep_store_list(StoreList({"there": url}, frozenset({"store-1"})))
    assert names(Settings(), folder) == ["store-0", "store-2", "there"]
    # What was retired may be removed by hand.
    (folder.path / "store-1.db").unlink()
    assert names(Settings(), folder) == ["store-0", "store-2", "there"]
    assert names(Settings(stores=4), folder) == ["store-0", "store-2", "store-3", "there"]
    other = f"sqlite://{tmp_path}/other.db"
    assert names(Settings(store_urls=(other,)), folder) == ["other", "there"]


def test_an_attached_store_may_be_named_on_the_command_line_too(folder, tmp_path):
    url = f"sqlite://{tmp_path}/far.db"
    folder.keep_store_list(StoreList({"far": url}))
    assert names(Settings(store_urls=(url,)), folder) == ["far"]


def test_a_server_without_any_store_does_not_start(folder):
    folder.keep_store_list(StoreList(retired=frozenset({"store-0"})))
    with pytest.raises(ConfigError, match="all messaging stores have been retired"):
        names(Settings(stores=1), folder)
