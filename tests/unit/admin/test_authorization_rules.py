"""The authorization rules keep the broker's rules and the ring of keys in step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bendybus.admin.authorization_rules import AuthorizationRules, RootRule
from bendybus.auth.key_ring import ROOT_RULE_NAME, KeyRing
from bendybus.broker.broker import Broker
from bendybus.domain.access import AuthorizationRule
from bendybus.domain.entities import QueueDescription
from bendybus.errors import InvalidOperation, QuotaExceeded, RuleNotFound
from bendybus.names import EntityPath
from bendybus.store.memory import MemoryStore
from bendybus.store.sqlite.catalog import SqliteCatalog

KEPT: dict[str, str] = {}
ROOT = RootRule("root-primary", "root-secondary", KEPT.__setitem__)


@contextmanager
def catalog_at(path: Path) -> Iterator[SqliteCatalog]:
    catalog = SqliteCatalog(path)
    catalog.open()
    yield catalog
    catalog.close()


@asynccontextmanager
async def open_rules(
    path: Path, root: RootRule = ROOT
) -> AsyncIterator[tuple[Broker, KeyRing, AuthorizationRules]]:
    with catalog_at(path / "catalog.db") as catalog:
        broker = Broker(catalog, [MemoryStore("m")])
        broker.start()
        ring = KeyRing()
        rules = AuthorizationRules(broker, ring, root)
        rules.open()
        yield broker, ring, rules
        await broker.stop()


def opens(ring: KeyRing, name: str, key: str) -> bool:
    return bool(ring.opened_by(name, key))


async def test_a_namespace_rule_opens_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with open_rules(tmp_path) as (_, ring, rules):
        rule, is_new = await rules.put("", "shop", ["Send"], "first-key", None)
        assert is_new and len(rule.secondary_key) == 44
        assert opens(ring, "shop", "first-key") and opens(ring, "shop", rule.secondary_key)

    async with open_rules(tmp_path) as (_, ring, rules):
        assert [rule.name for rule in rules.rules()] == [ROOT_RULE_NAME, "shop"]
        assert opens(ring, "shop", "first-key")


async def test_a_regenerated_key_closes_the_old_one_and_leaves_the_other(tmp_path: Path) -> None:
    async with open_rules(tmp_path) as (broker, ring, rules):
        await broker.queues.create(QueueDescription(EntityPath("Orders")))
        for scope in ("", "orders"):
            before, _ = await rules.put(scope, "shop", ["Send"], None, None)
            for which in ("primary", "secondary"):
                after = await rules.regenerate(scope, "shop", which)
                old, new = getattr(before, f"{which}_key"), getattr(after, f"{which}_key")
                assert old != new
                assert not opens(ring, "shop", old) and opens(ring, "shop", new)
                assert after.created_at == before.created_at
            await rules.remove(scope, "shop")
            assert not opens(ring, "shop", after.primary_key)


async def test_an_entitys_rules_come_and_go_with_it(tmp_path: Path) -> None:
    rule = AuthorizationRule("shop", ("Send",), "k")

    async with open_rules(tmp_path) as (broker, ring, rules):
        await broker.queues.create(QueueDescription(EntityPath("q"), authorization_rules=(rule,)))
        assert [each.scope for each in ring.opened_by("shop", "k")] == ["q"]
        await broker.queues.delete("q")
        assert not opens(ring, "shop", "k")
        with pytest.raises(RuleNotFound, match="has no authorization rule 'shop'"):
            rules.find("", "shop")


async def test_the_root_rule_is_one_of_twelve_and_stays(tmp_path: Path) -> None:
    async with open_rules(tmp_path) as (_, ring, rules):
        for number in range(11):
            await rules.put("", f"r{number}", ["Send"], None, None)
        with pytest.raises(QuotaExceeded, match="would have 13 authorization rules; at most 12"):
            await rules.put("", "r11", ["Send"], None, None)
        assert not any(rule.name == "r11" for rule in ring)
        with pytest.raises(InvalidOperation):
            await rules.put("", ROOT_RULE_NAME, ["Send"], None, None)
        with pytest.raises(InvalidOperation):
            await rules.remove("", ROOT_RULE_NAME)


async def test_the_root_keys_can_be_changed_where_the_data_folder_keeps_them(tmp_path: Path) -> None:
    async with open_rules(tmp_path) as (_, ring, rules):
        rule = await rules.regenerate("", ROOT_RULE_NAME, "secondary")
        assert {"secondary": rule.secondary_key} == KEPT
        assert not opens(ring, ROOT_RULE_NAME, "root-secondary")
        assert opens(ring, ROOT_RULE_NAME, "root-primary")
        assert opens(ring, ROOT_RULE_NAME, rule.secondary_key)

    async with open_rules(tmp_path, RootRule("k", "k")) as (_, ring, rules):
        with pytest.raises(InvalidOperation, match="set where the server is started"):
            await rules.regenerate("", ROOT_RULE_NAME, "primary")


async def test_a_file_brings_its_rules_and_leaves_the_others(tmp_path: Path) -> None:
    async with open_rules(tmp_path) as (_broker, _ring, rules):
        mine, _ = await rules.put("", "mine", ["Send"], None, None)
        asked = AuthorizationRule("shop", ("Send",), "from-the-file")
        await rules.bring("", [asked])
        second = await rules.regenerate("", "shop", "secondary")
        await rules.regenerate("", "shop", "primary")
        await rules.bring("", [asked])
        found = rules.find("", "shop")
        assert (found.primary_key, found.secondary_key) == ("from-the-file", second.secondary_key)
        assert rules.find("", "mine") == mine


async def test_an_update_at_the_same_time_does_not_bring_a_removed_rule_back(tmp_path: Path) -> None:
    async with open_rules(tmp_path) as (broker, ring, rules):
        queue = await broker.queues.create(QueueDescription(EntityPath("orders")))
        await rules.put("orders", "leaked", ["Send"], "leaked-key", None)
        read = queue.description
        changed = replace(read, max_delivery_count=5)
        removed = asyncio.ensure_future(rules.remove("orders", "leaked"))
        await asyncio.gather(removed, broker.queues.update(changed, based_on=read))
        assert not opens(ring, "leaked", "leaked-key")
        assert queue.description.authorization_rules == ()
        assert queue.description.max_delivery_count == 5
