"""The jobs of a session, with progress, at the foot of every page."""

from __future__ import annotations

from nicegui import ui

from bendybus_portal.components.charts import bar
from bendybus_portal.components.live import put
from bendybus_portal.components.table import ClickedAction, action_button, actions_of
from bendybus_portal.jobs import Job, JobState
from bendybus_portal.markup import EMPTY, Html, badge, tag
from bendybus_portal.sessions import Session
from bendybus_portal.shown import number

__all__ = ["jobs_panel"]

_TONES = {JobState.DONE: "good", JobState.FAILED: "bad", JobState.STOPPED: "warn"}


def jobs_panel(session: Session) -> None:
    def act(clicked: ClickedAction) -> None:
        for job in list(session.jobs.all):
            if str(job.number) == clicked.subject:
                if clicked.action == "stop":
                    job.stop()
                else:
                    session.jobs.forget(job)
        refresh()

    panel = actions_of(act, classes="jobs").props('role="status" aria-label="Jobs"')

    def refresh() -> None:
        put(panel, Html("".join(map(_shown, session.jobs.all))))

    refresh()
    ui.timer(0.5, refresh)


def _shown(job: Job) -> Html:
    total = "" if job.total is None else f" of {number(job.total)}"
    figures = tag("span", f"{number(job.done)}{total}", class_="num")
    fraction = job.fraction
    progress = (
        bar(fraction, f"{job.title}: {fraction:.0%}")
        if fraction is not None
        else bar(0, f"{job.title}: {number(job.done)}", "moving" if job.running else "")
    )
    way_out = (
        action_button("Stop", "stop", job.number, "stop")
        if job.running
        else action_button("Dismiss", "forget", job.number, "close")
    )
    return tag(
        "div",
        tag(
            "div",
            tag("strong", job.title),
            badge(str(job.state), _TONES.get(job.state, "neutral")),
            class_="job-title",
        ),
        progress,
        tag("div", figures, way_out, class_="job-foot"),
        tag("p", job.error, class_="problem") if job.error else EMPTY,
        class_="job",
        data_state=str(job.state),
    )
