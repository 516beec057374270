"""Progress of `callsheet submit` while it waits for an outcome, a line each on standard error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
from callsheet.cli.output import say
from callsheet.cli.questions import connection_options
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ActionState, Explanation
from callsheet.client.errors import CallsheetError

T = TypeVar("T")
_POLL_S = 0.5


async def watched(scheduler: str, job_id: str, action_ids: Sequence[str], submit: Callable[[], Awaitable[T]]) -> T:
    """Returns what `submit` returns, and shows meanwhile how these actions of it are doing."""
    async with AdminClient(scheduler, connection_options()) as admin, anyio.create_task_group() as tasks:
        tasks.start_soon(_show_changes, admin, job_id, action_ids)
        result = await submit()
        tasks.cancel_scope.cancel()
    return result


async def _show_changes(admin: AdminClient, job_id: str, action_ids: Sequence[str]) -> None:
    last = ""
    while True:
        await anyio.sleep(_POLL_S)
        for each in action_ids:
            try:
                said = progress_line(await admin.explain(job_id, each))
            except CallsheetError:
                # Not submitted yet, or no connection, which the submit itself will tell.
                continue
            if said and said != last:
                say(f"callsheet: {said}", err=True)
                last = said


def progress_line(found: Explanation) -> str:
    """How an action is doing; empty once it has its outcome."""
    kind = found.kind.value if found.kind else "action"
    if found.state is ActionState.QUEUED:
        return f"{kind} queued: {found.explanation}"
    return f"{kind} {found.state.value}" if found.state is ActionState.RUNNING else ""
