"""Pipelines: the runs that report to this server, with state, progress, counts, and reports' plots."""

from __future__ import annotations

from typing import Any, Final

from bendybus_portal.access import in_thread
from bendybus_portal.components.charts import bar, column_chart
from bendybus_portal.components.live import Live
from bendybus_portal.components.markup_element import markup
from bendybus_portal.components.table import Column, empty_state, table
from bendybus_portal.layout import Visit, card, portal_page, title_bar
from bendybus_portal.markup import EMPTY, Html, badge, join, link, tag
from bendybus_portal.shown import age, clock_time, duration, number, percent, size, words

__all__: list[str] = []

# A run reports every twenty seconds at least.
SILENT_AFTER_MS: Final = 60_000

_TONES: Final = {"running": "neutral", "finished": "good", "stopped": "warn", "failed": "bad"}


@portal_page("/pipelines", lambda visit: "Pipelines")
async def pipelines_page(visit: Visit) -> None:
    session, chosen = visit.session, visit.query.get("run", "")
    crumbs = [(session.rights.name, "/portal/")]
    if chosen:
        run = await in_thread(session.access.ask, "GET", f"/$pipelines/{chosen}")
        about = f" of {run['about']}" if run["about"] else ""
        title_bar(words(run["pipeline"]) + about, crumbs=[*crumbs, ("Pipelines", "/portal/pipelines")])
    else:
        title_bar("Pipelines", crumbs=crumbs)
    live = Live(session)
    if chosen:
        with card():
            shown = markup()
        plots = markup(classes="plots")

        async def refresh_one() -> None:
            run = await in_thread(session.access.ask, "GET", f"/$pipelines/{chosen}")
            shown.put(_details(run))
            plots.put(_plots(run["summary"]))

        live.add(refresh_one)
    else:
        listed = markup()

        async def refresh() -> None:
            listed.put(_listed(await in_thread(session.access.ask, "GET", "/$pipelines")))

        live.add(refresh)
    await live.start()


def _listed(told: dict[str, Any]) -> Html:
    if not told["runs"]:
        advice = join(
            "Start one, as ", tag("code", "bendybus pipeline report page.html --entity orders"), "."
        )
        return empty_state("timeline", "No runs yet", advice)
    columns = [
        Column("Pipeline", lambda each: link(words(each["pipeline"]), "pipelines", run=each["id"])),
        Column("About", lambda each: str(each["about"] or "–")),
        Column("State", lambda each: _state(each, told["at"])),
        Column("Progress", _progress, narrow=False),
        Column("Messages", lambda each: number(each["messages"]), numeric=True),
        Column("Started (UTC)", lambda each: _when(each["startedAt"]), narrow=False),
        Column(
            "Took", lambda each: duration(each["updatedAt"] - each["startedAt"]), numeric=True, narrow=False
        ),
    ]
    return table("Runs of pipelines", columns, told["runs"])


def _when(milliseconds: int) -> Html:
    return tag("span", clock_time(milliseconds), class_="nowrap num")


def _state(run: dict[str, Any], at: int) -> Html:
    if run["state"] == "running" and at - run["updatedAt"] > SILENT_AFTER_MS:
        return badge(f"silent for {age(at - run['updatedAt'])}", "warn")
    return badge(run["state"], _TONES.get(run["state"], "neutral"))


def _progress(run: dict[str, Any]) -> Html:
    total, done = run["total"], run["messages"] or 0
    drawn = bar(done / total, percent(done / total)) if total else EMPTY
    return tag("div", tag("span", run["phase"] or "–", class_="clip"), drawn)


def _details(run: dict[str, Any]) -> Html:
    known = {
        "Pipeline": run["pipeline"],
        "About": run["about"],
        "State": run["state"],
        "Phase": run["phase"],
        "Messages": number(run["messages"]),
        "Started (UTC)": clock_time(run["startedAt"]),
        "Last report (UTC)": clock_time(run["updatedAt"]),
        "Error": run["error"],
    }
    plain = {
        words(name): value
        for name, value in run["summary"].items()
        if not isinstance(value, list | dict) and words(name) not in known
    }
    pairs = [
        Html(tag("dt", name) + tag("dd", str(value))) for name, value in {**known, **plain}.items() if value
    ]
    return tag("dl", *pairs, class_="details")


def _plots(summary: dict[str, Any]) -> Html:
    """The figures of a report, section by section."""
    sections = summary.get("sections")
    if not isinstance(sections, list):
        return EMPTY
    return join(*(_section(each) for each in sections if isinstance(each, dict)))


def _section(section: dict[str, Any]) -> Html:
    partitions = section.get("partitions") or []
    rates = section.get("rates") or []
    by_partition = [(str(each["partition"]), float(each["messages"])) for each in partitions]
    over_time = [(str(each["from"]), float(each["perSecond"])) for each in rates]
    keys = section.get("topKeys") or []
    top = [(str(each["key"]), float(each["messages"])) for each in keys]
    figures = f"{number(section.get('messages'))} messages, {size(section.get('bodyBytes'))}"
    return tag(
        "section",
        tag("h2", str(section.get("title", "")), " ", tag("span", figures, class_="soft")),
        tag(
            "div",
            column_chart("Messages by partition", by_partition) if by_partition else EMPTY,
            column_chart("Messages per second", over_time) if over_time else EMPTY,
            column_chart("Largest keys", top) if top else EMPTY,
            class_="chart-row",
        ),
        class_="report-section",
    )
