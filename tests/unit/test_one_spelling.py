"""What is on the wire is spelled once in the source: annotation names, .NET's epoch, the partition shift."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from bendybus.amqp import annotations as annotation_names

SOURCE = Path(__file__).parents[2] / "src"

ANNOTATIONS = {
    value for name, value in vars(annotation_names).items() if name.isupper() and isinstance(value, str)
}


@cache
def constants() -> dict[object, list[str]]:
    """Every constant in the source, with the modules it stands in."""
    found: dict[object, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        nodes = ast.walk(ast.parse(text)) if any(each in text for each in ("x-opt-", "621", "48")) else ()
        values = {node.value for node in nodes if isinstance(node, ast.Constant)}
        for value in {each.decode("latin-1") if isinstance(each, bytes) else each for each in values}:
            found.setdefault(value, []).append(str(path.relative_to(SOURCE)))
    return found


def test_an_annotation_is_spelled_in_one_module() -> None:
    assert {name: constants()[name] for name in ANNOTATIONS} == {
        name: ["bendybus/amqp/annotations.py"] for name in ANNOTATIONS
    }


def test_the_epoch_of_dotnet_is_spelled_in_one_module() -> None:
    assert constants()[621_355_968_000_000_000] == ["bendybus/amqp/dotnet.py"]


def test_the_partition_shift_is_spelled_in_one_module() -> None:
    assert constants()[48] == ["bendybus/names.py"]
