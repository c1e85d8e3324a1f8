"""The C# of docs/guides/dotnet.md as source files: what the page shows is compiled, and what it does is done.

A block of statements becomes a method, which guide/Guide.cs calls. A block that declares a type is compiled
as it is. A block whose package cannot be had from npm names it in a comment above itself and is left out.
The address on the page is replaced by that of the server under test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["PAGE", "Snippet", "read", "source"]

PAGE: Final = Path(__file__).parents[3] / "docs" / "guides" / "dotnet.md"
ADDRESS: Final = "localhost:5672"

_PART: Final = re.compile(
    r"^## (?P<heading>[^\n]*)$"
    r"|(?:^<!-- not run: (?P<package>\S+) -->\n)?^```csharp\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_USING: Final = re.compile(r"^using [\w.]+;\n", re.MULTILINE)
_TYPE: Final = re.compile(r"(?:public|\[)")


@dataclass(frozen=True, slots=True)
class Snippet:
    heading: str
    code: str
    package: str | None
    """What it needs and cannot be had from npm; None for a snippet that is run."""

    @property
    def usings(self) -> list[str]:
        return _USING.findall(self.code)

    @property
    def body(self) -> str:
        return _USING.sub("", self.code).strip("\n")

    @property
    def declares_a_type(self) -> bool:
        return _TYPE.match(self.body) is not None


def read() -> Iterator[Snippet]:
    """The snippets of the page, in its order."""
    heading = ""
    for part in _PART.finditer(PAGE.read_text()):
        if part["code"] is None:
            heading = part["heading"]
        else:
            yield Snippet(heading, part["code"], part["package"])


def source(port: str) -> str:
    """A source file of the snippets that can be run, for a server at this port of this machine."""
    run = [snippet for snippet in read() if snippet.package is None]
    usings = {"using System;\n", "using System.Threading.Tasks;\n"}
    usings |= {using for snippet in run for using in snippet.usings}
    methods = [snippet for snippet in run if not snippet.declares_a_type]
    table = "".join(
        f'        ("{snippet.heading}", Snippet{number}),\n' for number, snippet in enumerate(methods)
    )
    bodies = "".join(
        f"\n    private static async Task Snippet{number}()\n    {{\n{snippet.body}\n    }}\n"
        for number, snippet in enumerate(methods)
    )
    types = "".join(f"{snippet.body}\n\n" for snippet in run if snippet.declares_a_type)
    text = (
        f"{''.join(sorted(usings))}\n{types}public static partial class Guide\n{{\n"
        f"    private static readonly (string, Func<Task>)[] Snippets =\n    {{\n{table}    }};\n{bodies}}}\n"
    )
    return text.replace(ADDRESS, f"localhost:{port}").replace("PortPolicy(5672)", f"PortPolicy({port})")
