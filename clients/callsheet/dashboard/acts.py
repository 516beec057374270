"""Acts that change something: cancel an action, close a job, drain a manager. Each has a page that confirms it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from callsheet.client.errors import RefusalCode, refused
from callsheet.dashboard.blocks import Cell, FormField, Notice, Table, View, WebForm, href, link
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.words import number, state_name
from callsheet.v1 import admin_service_pb2, client_service_pb2, common_pb2

_TOLD: Final = 100
_REASON: Final = "cancelled from the dashboard"


@dataclass(frozen=True, slots=True)
class Act:
    """An act.

    Attributes:
        confirm: Makes the page that tells what would happen.
        do: Does it.
        after: The page to go on with.
    """

    confirm: Callable[[Asked], Awaitable[View]]
    do: Callable[[Asked], Awaitable[object]]
    after: Callable[[Mapping[str, str]], str]


def _key(asked: Asked) -> common_pb2.ActionKey:
    return common_pb2.ActionKey(job_id=asked.of("job"), action_id=asked.of("action"))


async def _confirm_cancel(asked: Asked) -> View:
    found = await asked.source.explain(admin_service_pb2.ExplainRequest(key=_key(asked)))
    job, action = found.key.job_id, found.key.action_id
    sentence = f"{plain_line(action)} of job {plain_line(job)} is {state_name(found.state)}. {found.explanation}"
    form = WebForm("/cancel", "Cancel this action", hidden={"job": job, "action": action}, post=True)
    back = link("action", "Back to the action", job=job, action=action)
    return View("Cancel an action?", (Notice(plain_line(sentence, 1000)), form, Notice("", links=(back,))), refresh_s=0)


async def _cancel(asked: Asked) -> None:
    request = client_service_pb2.CancelActionRequest(key=_key(asked), reason=_REASON)
    await asked.source.cancel_action(request)


async def _confirm_close(asked: Asked) -> View:
    job_id = asked.needed("job")
    found = await asked.source.list_jobs(client_service_pb2.ListJobsRequest(job_id=job_id))
    job = found.jobs[0]
    open_actions = sum(job.actions.get(state, 0) for state in ("queued", "dispatched", "running"))
    sentence = (
        f"Job {plain_line(job_id)} has {number(open_actions)} open actions, which are cancelled, and "
        f"{number(job.open_trajectories)} open trajectories, which are closed. Its outcomes go with it."
    )
    form = WebForm("/close", "Close this job", hidden={"job": job_id}, post=True)
    back = link("job", "Back to the job", job=job_id)
    return View("Close a job?", (Notice(sentence), form, Notice("", links=(back,))), refresh_s=0)


async def _close(asked: Asked) -> None:
    await asked.source.close_job(client_service_pb2.CloseJobRequest(job_id=asked.of("job")))


def _drain_request(asked: Asked, *, dry_run: bool) -> admin_service_pb2.DrainManagerRequest:
    wait = asked.of("within")
    if wait and not (wait.isascii() and wait.isdigit() and len(wait) <= 9):
        raise refused(
            RefusalCode.INVALID_ARGUMENT, field="within", value=wait[:40], rule="must be whole seconds, or nothing"
        )
    return admin_service_pb2.DrainManagerRequest(
        manager_id=asked.of("manager"), deadline_s=float(wait) if wait else None, dry_run=dry_run
    )


async def _confirm_drain(asked: Asked) -> View:
    manager = asked.of("manager")
    found = await asked.source.drain_manager(_drain_request(asked, dry_run=True))
    sentence = (
        f"Manager {plain_line(manager)} runs {number(found.attempts)} attempts and holds "
        f"{number(found.sandbox_count)} sandboxes. Those that have not ended by the time it leaves die with it."
    )
    rows = [
        (link("trajectory", job=each.job_id, trajectory=each.trajectory_id), link("job", job=each.job_id))
        for each in found.sandboxes[:_TOLD]
    ]
    more = Cell(f"{number(found.sandbox_count - len(rows))} more") if found.sandbox_count > len(rows) else None
    wait = FormField("within", "Seconds until it leaves; nothing waits for the last sandbox", "", number=True)
    form = WebForm("/drain", "Drain this manager", (wait,), {"manager": manager}, post=True)
    dying = Table("Trajectories with a sandbox there", ("trajectory", "job"), rows, "none", more)
    back = link("manager", "Back to the manager", manager=manager)
    return View("Drain a manager?", (Notice(sentence), dying, form, Notice("", links=(back,))), refresh_s=0)


async def _drain(asked: Asked) -> None:
    await asked.source.drain_manager(_drain_request(asked, dry_run=False))


ACTS: Final[Mapping[str, Act]] = {
    "cancel": Act(
        _confirm_cancel,
        _cancel,
        lambda fields: href("action", job=fields.get("job", ""), action=fields.get("action", "")),
    ),
    "close": Act(_confirm_close, _close, lambda _: "/now"),
    "drain": Act(_confirm_drain, _drain, lambda fields: href("manager", manager=fields.get("manager", ""))),
}
"""The acts by the name of their page."""
