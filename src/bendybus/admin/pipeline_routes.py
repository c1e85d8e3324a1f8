"""Runs of pipelines, as the runs themselves report them: for people who want to see what is going on.

    GET  /$pipelines         the last runs, the newest first, without their summaries
    GET  /$pipelines/{id}    one run, with its summary
    PUT  /$pipelines/{id}    {"pipeline": "capture", "about": "orders", "state": "running", "phase": "...",
                              "messages": 12, "total": 100, "error": "", "summary": {...}}

Listen on the whole namespace is needed, as for the messages that a pipeline reads. The last runs are kept
(pipeline_runs.py). A run that has said nothing for a while may have been killed. Who reports:
cli/pipeline_runs.py.
"""

from __future__ import annotations

import json
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bendybus.admin.pipeline_runs import PipelineRuns
from bendybus.auth.http import authorise
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.errors import ArgumentError, BrokerError
from bendybus.http_bodies import RequestBody
from bendybus.namespaces import Namespace

__all__ = ["pipeline_routes"]

RUN_BYTES_MAX: Final = 64 * 1024
ID_LENGTH_MAX: Final = 64

STATES: Final = ("running", "finished", "stopped", "failed")
_TEXTS: Final = ("pipeline", "about", "phase", "error")
_KNOWN: Final = frozenset({*_TEXTS, "state", "messages", "total", "summary"})


def pipeline_routes(namespace: Namespace) -> list[BaseRoute]:
    """Must come before the management API, for which every path may be an entity."""
    api = _PipelineApi(namespace)
    return [
        Route("/$pipelines", api.serve, methods=["GET"]),
        Route("/$pipelines/{run}", api.serve, methods=["GET", "PUT"]),
    ]


class _PipelineApi:
    def __init__(self, namespace: Namespace) -> None:
        self._keys = namespace.keys
        self._runs = PipelineRuns(namespace.runs_folder)

    async def serve(self, request: Request) -> Response:
        body = RequestBody(request.receive, request.headers.get("content-length"))
        try:
            authorise(request.headers, self._keys, "", Right.LISTEN, now())
            response = await self._answer(request, body)
        except BrokerError as refusal:
            response = JSONResponse({"error": refusal.description}, refusal.status)
        if request.method == "PUT" and not await body.discard():
            response.headers["connection"] = "close"
        return response

    async def _answer(self, request: Request, body: RequestBody) -> Response:
        name = request.path_params.get("run")
        if name is None:
            newest = await self._runs.newest_first()
            shown = [{key: each[key] for key in each if key != "summary"} for each in newest]
            return JSONResponse({"at": now(), "runs": shown})
        if request.method == "PUT":
            if len(name) > ID_LENGTH_MAX:
                raise ArgumentError(f"A run's id has at most {ID_LENGTH_MAX} characters.")
            await self._runs.put(name, _read(await body.read_document(RUN_BYTES_MAX)), now())
        found = await self._runs.find(name)
        if found is None:
            return JSONResponse({"error": f"There is no run '{name[:ID_LENGTH_MAX]}'."}, 404)
        return JSONResponse(found)


def _read(content: bytes) -> dict[str, object]:
    try:
        told = json.loads(content)
        # NaN, and half of a surrogate pair: both could be kept, and no answer could show them.
        json.dumps(told, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or not told.keys() <= _KNOWN:
        raise ArgumentError(f"The body must be a JSON object with some of {', '.join(sorted(_KNOWN))}.")
    if told.get("state") not in STATES:
        raise ArgumentError(f"'state' must be one of {', '.join(STATES)}.")
    for name in _TEXTS:
        if not isinstance(told.setdefault(name, ""), str):
            raise ArgumentError(f"'{name}' must be text.")
    for name in ("messages", "total"):
        value = told.setdefault(name, None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ArgumentError(f"'{name}' must be a whole number.")
    if not isinstance(told.setdefault("summary", {}), dict):
        raise ArgumentError("'summary' must be an object.")
    return told
