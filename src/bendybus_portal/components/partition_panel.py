"""The partition panel: each partition's store, broker, health, depth, oldest message and share of traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bendybus_portal.components.charts import bar
from bendybus_portal.history import EntityHistory
from bendybus_portal.markup import EMPTY, Html, badge, icon, tag
from bendybus_portal.shown import age, number, percent, rate, size

__all__ = ["partition_panel", "skew_of"]

# A partition with this many times the mean is worth a remark.
SKEWED = 3.0


def skew_of(loads: list[float]) -> float | None:
    """How many times the mean the largest is; None if there is nothing to compare."""
    total = sum(loads)
    return max(loads) * len(loads) / total if len(loads) > 1 and total > 0 else None


def partition_panel(told: Mapping[str, Any], history: EntityHistory, server: str) -> Html:
    """`server`: shown as the broker of all partitions, if the server has one broker."""
    partitions = told["partitions"]
    rates = [history.rates.get(each["partition"], 0.0) for each in partitions]
    depths = [float(each.get("active") or 0) for each in partitions]
    flowing = sum(rates) > 0
    loads = rates if flowing else depths
    most = max(loads, default=0.0)
    total = sum(loads)
    shown = [
        _partition(
            each,
            told["at"],
            load,
            load / total if total else 0.0,
            load / most if most else 0.0,
            each.get("broker", server) or "none",
            flowing,
            told["kind"] == "topic",
        )
        for each, load in zip(partitions, loads, strict=True)
    ]
    return Html(_remarks(partitions, skew_of(loads), flowing) + tag("div", *shown, class_="partitions"))


def _remarks(partitions: list[dict[str, Any]], skew: float | None, flowing: bool) -> Html:
    away = [str(each["partition"]) for each in partitions if not each["available"]]
    # The state of a store is unknown if its broker does not answer.
    well = ("available", "unknown")
    stores = sorted({each["store"] for each in partitions if each["storeState"] not in well})
    brokers = sorted({each["broker"] for each in partitions if each["state"] == "unreachable"} - {""})
    remarks = EMPTY
    if away or stores:
        what = f"Partitions {', '.join(away)} do not answer. " if away else ""
        what += f"Store {', '.join(stores)} is not well. " if stores else ""
        what += f"Broker {', '.join(brokers)} is away. " if brokers else ""
        rest = "Messages without a key go to the other partitions." if len(away) < len(partitions) else ""
        remarks = tag(
            "div", icon("warning_amber"), tag("span", what + rest), class_="banner bad", id="outage"
        )
    if skew is not None and skew >= SKEWED and len(partitions) > 1:
        of_what = "of the traffic" if flowing else "of the messages"
        text = (
            f"Skewed: the fullest partition has {skew:.1f} times its share {of_what}. "
            "Do many messages share a key?"
        )
        remarks = Html(
            remarks + tag("div", icon("balance"), tag("span", text), class_="banner warn", id="skew")
        )
    return tag("div", remarks, class_="remarks") if remarks else EMPTY


def _partition(
    each: dict[str, Any],
    at: int,
    load: float,
    share: float,
    of_most: float,
    broker: str,
    flowing: bool,
    topic: bool,
) -> Html:
    slow = each["available"] and each["storeState"] != "available"
    tone = "" if each["available"] and not slow else "slow" if slow else "away"
    health = (
        badge("Available", "good")
        if not tone
        else badge(each["storeState"].capitalize(), "warn")
        if slow
        else badge(str(each["state"]).capitalize(), "bad")
    )
    oldest = each.get("oldestEnqueuedAt")
    facts = [
        ("Store", each["store"]),
        ("Broker", broker),
        *(
            # The messages of a topic are in its subscriptions; those that are scheduled wait in the topic.
            [("Scheduled", number(each.get("scheduled")))]
            if topic
            else [
                ("Active", number(each.get("active"))),
                ("Dead letters", number(each.get("deadLetters"))),
                ("Oldest", age(at - oldest) if oldest else "–"),
            ]
        ),
        ("Size", size(each.get("sizeBytes"))),
        ("Arriving / s", rate(load if flowing else 0.0)),
        ("Share", percent(share)),
    ]
    return tag(
        "article",
        tag("div", tag("strong", f"Partition {each['partition']}"), health, class_="partition-head"),
        bar(of_most, f"{percent(share)} of the {'traffic' if flowing else 'messages'}"),
        tag("dl", *(Html(tag("dt", name) + tag("dd", value)) for name, value in facts), class_="figures"),
        class_=f"partition {tone}".strip(),
        # Its height is known, so that a figure that changes moves nothing else on the page.
        style=f"--facts:{len(facts)}",
        data_partition=each["partition"],
    )
