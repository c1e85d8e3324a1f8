"""Session ids are the same whatever their case; and every place that compares or hashes one is known."""

from __future__ import annotations

import ast
import unicodedata
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.names import SessionId
from bendybus.session_ids import OneSession, fold_case, session_key

SOURCE = Path(__file__).parents[2] / "src"

EVERY_CHARACTER = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000)

# What `ToUpperInvariant` of .NET 9 gives for one character, where it is not Python's `upper()`.
DOTLESS_I, LONG_S = "\u0131", "\u017f"


def upper_as_dotnet(character: str) -> str:
    """The simple mapping: one character for one, and for two letters none at all."""
    if character in (DOTLESS_I, LONG_S):
        return character
    for mapped in (character.upper(), character.title()):
        if len(mapped) == 1:
            return mapped
    return character


@pytest.mark.row("P-13")
@pytest.mark.parametrize(
    "ids",
    [
        ("Alpha", "ALPHA", "alpha"),
        ("Ünïcödé", "ÜNÏCÖDÉ", "ünïcödé"),
        ("Σίσυφος", "ΣΊΣΥΦΟΣ", "σίσυφοσ"),
        ("\U00010400x", "\U00010428X"),
        ("\u01c4", "\u01c5", "\u01c6"),
        ("\u1f80", "\u1f88"),
        ("", ""),
    ],
)
def test_ids_that_differ_in_case_are_one(ids: tuple[str, ...]) -> None:
    assert len({session_key(each) for each in ids}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("stra\u00dfe", "STRASSE"),
        ("\u00df", "\u1e9e"),
        ("I", DOTLESS_I),
        ("i", "\u0130"),
        ("s", LONG_S),
        ("k", "\u212a"),
        ("\u00e5", "\u212b"),
        ("\u03c9", "\u2126"),
        ("\u03b8", "\u03f4"),
        ("\ufb01", "FI"),
        ("e\u0301", "\u00c9"),
        (" a", "a"),
    ],
)
def test_ids_that_dotnet_tells_apart_are_two(one: str, other: str) -> None:
    assert session_key(one) != session_key(other)


@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="compares with the tables of Unicode 14")
def test_two_characters_are_equal_just_where_their_simple_upper_case_is() -> None:
    """All of Unicode, compared with .NET 9 when it was written; Python 3.11 has the same version of it."""
    pairs = {*zip(map(upper_as_dotnet, EVERY_CHARACTER), fold_case(EVERY_CHARACTER), strict=True)}
    # One key for each upper case, and one upper case for each key.
    assert len(pairs) == len({upper for upper, _ in pairs}) == len({key for _, key in pairs})


def test_the_keys_of_all_characters_are_pinned() -> None:
    """They decide about partitions, so they are part of the stored format: whatever Python comes."""
    assert sha256(fold_case(EVERY_CHARACTER).encode()).hexdigest() == (
        "15cd4189d4bc5ffc27e14b40a2ba7657336320a2535a2760d059c3d2d277c4ea"
    )


@given(st.text(max_size=128))
def test_a_key_is_its_own_key_and_has_as_many_characters(text: str) -> None:
    key = session_key(text)
    assert session_key(key) == key
    assert len(key) == len(text)


def test_where_case_counted_at_creation_it_still_counts() -> None:
    old = OneSession("Alpha", exact=True)
    assert old.key == "Alpha"
    assert old.includes(SessionId("Alpha"))
    assert not old.includes(SessionId("ALPHA"))
    assert not OneSession("").includes(None)


# -- where ids are compared or hashed ---------------------------------------------------------

# Where a session id as it was written is compared, looked up or hashed, and why that is right there.
# Everything else goes by `session_key`. A new place has to be entered here, with its reason.
BY_SPELLING = {
    "bendybus/domain/sessions.py: message.session_id == session.id": "shares one copy of equal texts",
    "bendybus/store/memory.py: partition.session_states.pop(state.session_id)": "a partition gives its store "
    "one spelling for each session",
    "bendybus/store/memory.py: partition.session_states[state.session_id]": "the same",
    "bendybus/store/memory.py: self._partition(key).session_states.get(session_id)": "the same",
    "bendybus/store/sqlite/pending.py: self._states.get((key, session_id))": "the same",
    "bendybus/store/sqlite/pending.py: self._states[key, session_id]": "the same",
    "pyspark_servicebus/pipelines/session_states.py: share[session_id]": "ids that a broker has listed: one "
    "spelling for each session",
}
# An id by its names, as it was written; the key has names of its own.
IDS = {"session_id", "group_id"}


def is_id(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id in IDS) or (
        isinstance(node, ast.Attribute) and node.attr in IDS
    )


def holds_id(node: ast.expr) -> bool:
    return is_id(node) or (isinstance(node, ast.Tuple) and any(map(is_id, node.elts)))


def uses_of_spelling(tree: ast.AST) -> list[str]:
    """Comparisons with anything but None, look-ups, and what goes into a set or makes a dict's key."""
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [left, *others]
                identity = all(isinstance(op, ast.Is | ast.IsNot) for op in ops)
                if any(map(is_id, sides)) and not identity:
                    found.append(ast.unparse(node))
            case ast.Subscript(slice=place) if holds_id(place):
                found.append(ast.unparse(node))
            case ast.Call(
                func=ast.Attribute(attr="get" | "pop" | "setdefault" | "add" | "discard"), args=args
            ):
                if args and holds_id(args[0]):
                    found.append(f"{ast.unparse(node.func)}({ast.unparse(args[0])})")
            case ast.Call(func=ast.Name(id="hash" | "set" | "frozenset" | "sorted"), args=args):
                if any(holds_id(each) for each in args):
                    found.append(ast.unparse(node))
            case ast.Set(elts=elements) if any(map(is_id, elements)):
                found.append(ast.unparse(node))
            case ast.SetComp(elt=element) if is_id(element):
                found.append(ast.unparse(node))
            case ast.Dict(keys=keys) if any(key is not None and is_id(key) for key in keys):
                found.append(ast.unparse(node))
            case ast.DictComp(key=key) if is_id(key):
                found.append(ast.unparse(node))
            case ast.Call(
                func=ast.Name(id="partition_of" | "crc32") | ast.Attribute(attr="host_for"), args=args
            ):
                if args and holds_id(args[0]):
                    found.append(ast.unparse(node))
    return found


def test_every_place_that_compares_or_hashes_a_session_id_is_listed() -> None:
    found = {
        f"{path.relative_to(SOURCE)}: {use}"
        for path in SOURCE.rglob("*.py")
        for use in uses_of_spelling(ast.parse(path.read_text()))
    }
    assert found == set(BY_SPELLING)


@pytest.mark.parametrize(
    "line",
    [
        "message.session_id == other.session_id",
        "a.session_id != b",
        "session_id in known",
        "known[queue, session_id]",
        "known.get(session_id)",
        "known.setdefault((queue, lock.session_id), 1)",
        "{message.session_id for message in messages}",
        "{session_id: 1}",
        "entity.host_for(session_id)",
    ],
)
def test_the_search_finds_what_it_is_for(line: str) -> None:
    assert uses_of_spelling(ast.parse(line))
