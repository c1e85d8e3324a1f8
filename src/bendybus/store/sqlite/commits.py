"""The statement of a commit: it has only the steps that this commit needs.

A whole commit is one row, inserted into a temporary view whose trigger does the work (queries.sql), because
the writer's thread waits for the interpreter's lock after each step of SQLite. A trigger with all steps would
run each of them, even those with nothing to do, which took a fifth of the time of a commit of one message. So
each combination of steps has its own view, which is defined when a commit first needs it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from bendybus.store.sqlite.encoding import CommitParameters

__all__ = ["CommitStatements"]

# In the order in which they are carried out. Their parameters follow those that every commit has.
STEPS: Final = (
    "bodies",
    "runs",
    "copies",
    "rows",
    "updated",
    "removed",
    "noted",
    "released",
    "remembered",
)
ALWAYS: Final = 4
"""The parameters `bytes`, `counters`, `number` and `ahead`."""


class CommitStatements:
    """Those of the writer's connection."""

    __slots__ = ("_queries", "_statements", "_writer", "general")

    def __init__(self, writer: sqlite3.Connection, queries: Mapping[str, str]) -> None:
        self._writer = writer
        self._queries = queries
        self._statements: dict[tuple[bool, ...], str] = {}
        self.general = self._define(STEPS)
        """For any parameters. It can be used inside a transaction, where none must be defined: a rollback
        would remove it again."""

    def find(self, parameters: CommitParameters) -> str:
        """The statement for these parameters, to be used outside of a transaction."""
        needed = tuple([each is not None for each in parameters[ALWAYS:]])
        statement = self._statements.get(needed)
        if statement is None:
            steps = [name for name, is_needed in zip(STEPS, needed, strict=True) if is_needed]
            statement = self._statements[needed] = self._define(steps)
        return statement

    def _define(self, steps: Sequence[str]) -> str:
        view = "_".join(("commit_request", *steps))
        text = "\n".join(self._queries[f"commit_{name}"] for name in steps)
        self._writer.execute(self._queries["define_commit"].format(view=view))
        self._writer.execute(self._queries["define_commit_steps"].format(view=view, steps=text))
        return self._queries["commit"].format(view=view)
