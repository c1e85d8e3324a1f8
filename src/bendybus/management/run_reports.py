"""Reports the progress of a pipeline's run to the server. Reporting never disturbs the run.

Reports go out from a thread, at most one a second; only the newest one that waits is sent. If the server
cannot be reached, or is not a Bendybus server, the run continues without reports. The server's side:
admin/pipeline_routes.py.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from typing import Any, Final

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import BrokerError
from bendybus.management.json_api import ask_json

__all__ = ["RunReporter"]

EVERY_S: Final = 1.0
# So that a long run is seen to be alive even if nothing new has happened.
ALIVE_EVERY_S: Final = 20.0
# How long the last report may delay the end of a command.
LAST_WAIT_S: Final = 5.0
# The server keeps no more of one run.
SUMMARY_BYTES_MAX: Final = 50_000


class RunReporter:
    """`tell` as often as you like, `end` once."""

    def __init__(
        self, namespace: ConnectionString, pipeline: str, about: str, certificate: str | None = None
    ) -> None:
        self._namespace = namespace
        self._certificate = certificate
        self._path = f"/$pipelines/{uuid.uuid4().hex}"
        self._report: dict[str, Any] = {"pipeline": pipeline, "about": about, "state": "running"}
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._useless = False
        self._thread = threading.Thread(target=self._run, name="run-reporter", daemon=True)
        self._thread.start()

    def tell(self, phase: str, messages: int, total: int | None) -> None:
        self._report = {**self._report, "phase": phase, "messages": messages, "total": total}
        self._changed.set()

    def end(
        self,
        state: str,
        messages: int | None = None,
        summary: Mapping[str, Any] | None = None,
        error: str = "",
    ) -> None:
        """`finished`, `stopped` or `failed`. Returns when the server has been told, or after a moment."""
        kept = dict(summary or {})
        if len(json.dumps(kept, default=str)) > SUMMARY_BYTES_MAX:
            kept = {name: value for name, value in kept.items() if not isinstance(value, list | dict)}
        told = self._report if messages is None else {**self._report, "messages": messages}
        self._report = {**told, "state": state, "summary": kept, "error": error[:2000]}
        self._ended.set()
        self._changed.set()
        self._thread.join(LAST_WAIT_S)

    def _run(self) -> None:
        while True:
            ending = self._ended.is_set()
            self._changed.clear()
            self._send()
            if ending or self._useless:
                return
            self._ended.wait(EVERY_S)
            self._changed.wait(ALIVE_EVERY_S)

    def _send(self) -> None:
        try:
            body = json.loads(json.dumps(self._report, default=str))
            ask_json(self._namespace, "PUT", self._path, body, self._certificate)
        except BrokerError as error:
            # A server that may come back gets the report later; one that does not have the route never does.
            self._useless = not error.retryable
