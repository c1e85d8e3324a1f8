"""Several namespaces in one data folder: where each is kept, and how a client reaches it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.broker.broker import Broker
from bendybus.errors import ConfigError
from bendybus.namespaces import Namespace
from bendybus.server.naming import connection_strings, namespace_folders
from bendybus.server.settings import Settings
from bendybus.store.folder import DataFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    folder = DataFolder(tmp_path)
    folder.open()
    yield folder
    folder.close()


async def placed(folder: DataFolder, *wanted: str, settings: Settings | None = None) -> dict[str, str]:
    """Where each namespace is, as a path inside the data folder."""
    async with AsyncExitStack() as exits:
        folders = namespace_folders(folder, wanted, settings or Settings(), exits)
        if len(folders) > 1:
            folder.record_namespaces(list(folders))
        return {name: str(own.path.relative_to(folder.path)) for name, own in folders.items()}


async def test_one_alone_is_the_folder_itself_under_any_name(folder: DataFolder) -> None:
    assert await placed(folder) == {"bendybus": "."}
    assert await placed(folder, "sbemulatorns") == {"sbemulatorns": "."}
    assert await placed(folder, "with/any.name") == {"with/any.name": "."}
    assert folder.namespaces() == []


async def test_a_second_one_comes_beside_the_first_and_stays(folder: DataFolder) -> None:
    assert await placed(folder, "shop", "Bank") == {"shop": ".", "Bank": "namespaces/bank"}
    assert await placed(folder) == {"shop": ".", "Bank": "namespaces/bank"}
    assert await placed(folder, "bank") == {"shop": ".", "Bank": "namespaces/bank"}
    assert (await placed(folder, "SHOP", "post"))["post"] == "namespaces/post"
    assert folder.namespaces() == ["shop", "Bank", "post"]


async def test_a_name_that_no_client_could_call_is_refused(folder: DataFolder) -> None:
    with pytest.raises(ConfigError, match=r"'b\.c' cannot name one of several namespaces"):
        await placed(folder, "a", "b.c")
    assert folder.namespaces() == []


async def test_stores_elsewhere_hold_one_namespace(folder: DataFolder) -> None:
    settings = Settings(store_urls=("sqlite:///a.db",))
    assert await placed(folder, "a", settings=settings) == {"a": "."}
    with pytest.raises(ConfigError, match="--store and several namespaces cannot be combined"):
        await placed(folder, "a", "b", settings=settings)


async def test_stores_are_attached_to_one_namespace_alone(folder: DataFolder) -> None:
    settings = Settings(allowed_stores=("/mnt",))
    assert await placed(folder, "a", settings=settings) == {"a": "."}
    with pytest.raises(ConfigError, match="--allow-store and several namespaces cannot be combined"):
        await placed(folder, "a", "b", settings=settings)


def test_a_connection_string_has_the_key_or_where_that_is_shared_the_name() -> None:
    keys = {"first": "k1", "second": "k2", "Third": "k1"}
    namespaces = [
        Namespace(name, cast(Broker, SimpleNamespace()), KeyRing([AccessRule.root(key)]))
        for name, key in keys.items()
    ]
    strings = connection_strings(namespaces, "0.0.0.0", 5672)
    assert [string.split(";")[0] for string in strings.values()] == [
        "Endpoint=sb://127.0.0.1:5672",
        "Endpoint=sb://127.0.0.1:5672",
        "Endpoint=sb://third.localhost:5672",
    ]
    assert [string.split(";")[2] for string in strings.values()] == [
        f"SharedAccessKey={key}" for key in keys.values()
    ]
