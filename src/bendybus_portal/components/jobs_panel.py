"""At the foot of every page: the jobs of the session with their progress, and what can still be undone."""

from __future__ import annotations

from nicegui import ui

from bendybus_portal.access import in_thread
from bendybus_portal.components.charts import bar
from bendybus_portal.components.live import tell, told_errors
from bendybus_portal.components.table import ClickedAction, action_button, actions_of
from bendybus_portal.jobs import Job, JobState
from bendybus_portal.markup import EMPTY, Html, badge, icon, join, tag
from bendybus_portal.sessions import Session
from bendybus_portal.shown import number
from bendybus_portal.undo import Undo

__all__ = ["jobs_panel"]

EVERY_S = 0.5

_TONES = {JobState.DONE: "good", JobState.FAILED: "bad", JobState.STOPPED: "warn"}


def jobs_panel(session: Session) -> None:
    async def act(clicked: ClickedAction) -> None:
        if clicked.action in ("undo", "keep"):
            undo = session.undos.take(int(clicked.subject))
            if undo is not None and clicked.action == "undo":
                with told_errors():
                    await in_thread(undo.work)
                    tell("Undone.")
                    ui.navigate.reload()
        for job in list(session.jobs.all):
            if str(job.number) == clicked.subject:
                if clicked.action == "stop":
                    job.stop()
                elif clicked.action == "forget":
                    session.jobs.forget(job)
        refresh()

    panel = actions_of(act, classes="jobs").props('role="status" aria-label="Jobs"')

    def refresh() -> None:
        offered = [_offered(undo, session.undos.left_s(undo)) for undo in session.undos.offered()]
        panel.put(join(*offered, *map(_shown, session.jobs.all)))

    refresh()
    ui.timer(EVERY_S, refresh)


def _offered(undo: Undo, left_s: int) -> Html:
    return tag(
        "div",
        icon("check_circle_outline"),
        tag("span", undo.text, class_="undo-text"),
        tag("span", f"{left_s} s", class_="soft num"),
        action_button("Undo", "undo", undo.number, "undo"),
        action_button("Keep", "keep", undo.number),
        class_="job undo",
    )


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
