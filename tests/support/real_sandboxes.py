"""A whole stack with real sandboxes, and what its commands look like from outside of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import psutil
from callsheet.client import NotFoundError
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ActionState
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import Isolation

from tests.support.waiting import WAIT_S

# Each look at all processes takes CPU time from those that are waited for.
_POLL_S = 0.02


@asynccontextmanager
async def sandbox_stack(data_dir: Path) -> AsyncIterator[Stack]:
    """Runs a scheduler, a sandbox manager and a no-op manager; plain processes where bubblewrap does not work."""
    isolation = Isolation.BUBBLEWRAP if probe_bubblewrap().works else Isolation.NONE
    settings = StackSettings(data_dir, managers=(Role.SANDBOX, Role.NOOP), given={"isolation": isolation})
    async with local_stack(settings) as stack:
        yield stack


def processes(*command: str) -> list[psutil.Process]:
    """The processes on this machine whose command line ends so; the tests' commands are unlike any other."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            if tuple(process.cmdline()[-len(command) :]) == command and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


async def until_state(admin: AdminClient, job_id: str, action_id: str, *states: ActionState) -> None:
    """Waits until an action is in one of some states; one that was just submitted may not even have arrived.

    Raises:
        TimeoutError: It was not, in time; with its explanation.
    """
    give_up_at = anyio.current_time() + WAIT_S
    seen = "not known"
    while anyio.current_time() < give_up_at:
        with suppress(NotFoundError):
            explanation = await admin.explain(job_id, action_id)
            if explanation.state in states:
                return
            seen = f"{explanation.state.value}: {explanation.explanation}"
        await anyio.sleep(_POLL_S)
    raise TimeoutError(f"{action_id} is {seen}")
