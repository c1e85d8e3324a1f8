"""The dialog that creates a queue or a topic. "Enable partitioning" is ticked (P-36)."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from bendybus.management.durations import read_duration
from bendybus.management.properties import QUEUE, TOPIC, new_elements
from bendybus_portal.access import in_thread
from bendybus_portal.components.dialogs import FormDialog, choice, field, form_dialog, switch
from bendybus_portal.components.live import go_to
from bendybus_portal.components.markup_element import markup
from bendybus_portal.markup import Html, icon, page_url, tag
from bendybus_portal.sessions import Session

__all__ = ["create_entity_dialog", "effective_size"]

# Of a partitioned entity in Basic and Standard.
PARTITIONS: Final = 16

_SIZES: Final = {"standard": (1, 2, 3, 4, 5), "basic": (1, 2, 3, 4, 5), "premium": (1, 2, 5, 10, 20, 40, 80)}


def effective_size(tier: str, size_gb: int, partitioned: bool) -> str:
    """What the chosen size means, in words."""
    if tier == "premium":
        return f"The entity holds up to {size_gb} GB. In Premium the namespace decides about partitions."
    if partitioned:
        return (
            f"{PARTITIONS} partitions of {size_gb} GB each: the entity holds up to {size_gb * PARTITIONS} GB."
        )
    return f"One partition: the entity holds up to {size_gb} GB."


def create_entity_dialog(session: Session) -> FormDialog:
    tier = session.rights.tier.lower() or "standard"
    premium = tier == "premium"

    async def create() -> None:
        topic = kind.value == "topic"
        values: dict[str, object] = {
            "MaxSizeInMegabytes": int(size.value) * 1024,
            "EnablePartitioning": None if premium else str(bool(partitioned.value)).lower(),
            "RequiresDuplicateDetection": "true" if duplicates.value else None,
            "DefaultMessageTimeToLive": read_duration(life.value) if life.value.strip() else None,
        }
        if not topic:
            values["RequiresSession"] = "true" if sessions.value else None
            values["DeadLetteringOnMessageExpiration"] = "true" if letters.value else None
            values["LockDuration"] = read_duration(lock.value) if lock.value.strip() else None
            values["MaxDeliveryCount"] = deliveries.value.strip() or None
        entity_kind = TOPIC if topic else QUEUE
        path = name.value.strip()

        def ask() -> None:
            with session.access.management() as management:
                management.create(path, entity_kind.element, new_elements(entity_kind, values))

        await in_thread(ask)
        go_to(page_url("entity", path=path))

    with form_dialog("Create a queue or topic", "Create", create) as form:
        kind = (
            ui.radio({"queue": "Queue", "topic": "Topic"}, value="queue")
            .props("inline dense")
            .classes("tick")
        )
        kind.props('aria-label="Kind"')
        name = field("Name")
        partitioned = switch("Enable partitioning", value=not premium)
        if premium:
            partitioned.disable()
        size = choice("Maximum size", {str(gb): f"{gb} GB" for gb in _SIZES[tier]}, "1")
        meaning = markup(classes="meaning")
        with ui.element("div").classes("columns"):
            life = field("Time to live", example="unlimited")
            lock = field("Lock duration", example="1m")
            deliveries = field("Maximum delivery count", example="10")
        sessions = switch("Sessions")
        duplicates = switch("Duplicate detection")
        letters = switch("Dead-letter messages that expire")

        def explain() -> None:
            text = effective_size(tier, int(size.value), bool(partitioned.value))
            meaning.put(tag("p", icon("straighten"), tag("span", text)))
            for only_queue in (lock, deliveries, sessions, letters):
                only_queue.set_visibility(kind.value == "queue")

        for each in (kind, partitioned, size):
            each.on_value_change(explain)
        meaning.put(Html(""))
        explain()
    return form
