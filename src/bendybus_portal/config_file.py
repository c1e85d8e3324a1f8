"""Entities as the emulator's Config.json, for pages (management/config_file.py). Everything blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bendybus.management import config_file
from bendybus.management.config_file import Outcome, as_document, exported_namespace, imported
from bendybus_portal.access import Access
from bendybus_portal.jobs import Job

__all__ = ["export_config", "import_work", "read_config"]


def export_config(access: Access, name: str) -> str:
    """All entities with their properties and rules, and no keys."""
    with access.management() as management:
        return as_document(exported_namespace(management, name))


def read_config(text: str) -> Mapping[str, Any]:
    """The first namespace of a file; `ArgumentError` if it is not such a file."""
    return config_file.read_config(text)[0]


def import_work(access: Access, namespace: Mapping[str, Any], job: Job) -> None:
    """Create the entities that do not exist, and complete those that a former import has begun."""
    with access.management() as management:
        for step in imported(management, namespace):
            if job.stopping:
                return
            job.done += step.outcome is not Outcome.EXISTS
