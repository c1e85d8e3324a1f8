"""Switches OpenTelemetry on. Nothing else imports its packages, which are a part of `bendybus[otel]`."""

from __future__ import annotations

from contextlib import AsyncExitStack
from importlib.metadata import version

from bendybus.errors import ConfigError
from bendybus.server.cluster_part import ClusterPart
from bendybus.server.front import Front

__all__ = ["start_telemetry"]


def start_telemetry(front: Front, member: ClusterPart | None, exits: AsyncExitStack) -> None:
    """Of several brokers, each exports its traces and logs, and the one that leads all metrics.

    Metrics of which a broker's part is missing are not exported: its counters would seem to fall.
    """
    try:
        from bendybus.telemetry.figures import Sample  # noqa: PLC0415 - only where it is switched on
        from bendybus.telemetry.pipeline import Telemetry  # noqa: PLC0415
    except ImportError as missing:
        raise ConfigError(
            f"--telemetry needs the packages of bendybus[otel], and {missing.name} is not installed: "
            "pip install 'bendybus[otel]'"
        ) from missing

    async def samples() -> list[Sample] | None:
        if member is not None and not member.has_catalog:
            return None
        collected = await front.metrics.samples()
        if member is not None and not member.all_counted:
            return None
        return [
            Sample(family.name, family.kind, family.meaning, family.bounds, *sample)
            for family, found in collected.by_family.items()
            for sample in found
        ]

    telemetry = Telemetry(version("bendybus"))
    exits.push_async_callback(telemetry.close)
    telemetry.start(front.gateway, samples)
