"""`bendybus pipeline`: the table of its commands, which are in pipelines.py.

They are imported one by one, because they import Spark, which takes more than a second and
is an extra: without it only these commands are missing.
"""

from __future__ import annotations

from typing import Final

from bendybus.cli.lazy import Deferred, LazyGroup

__all__ = ["app"]

_COMMANDS: Final = {
    "capture": "Stream an entity into files, each message once.",
    "replay": "Send captured messages to an entity again, as they were and in their order.",
    "report": "Show rates, latencies, skew, keys and dead-letter reasons as one HTML page.",
    "triage": "Group dead letters by their reasons; resubmit or discard a selection.",
    "repartition": "Move a queue or topic to a new one with the other partitioning choice.",
    "route": "Stream messages from one entity through a Spark SQL statement to another.",
}

app: Final = LazyGroup(
    "pipeline",
    help="Data pipelines on Spark, local or on a cluster.",
    commands=[
        Deferred(name, "bendybus.cli.pipelines", name, short_help, extra="spark")
        for name, short_help in _COMMANDS.items()
    ],
    no_args_is_help=True,
)
