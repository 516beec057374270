"""Ends and starts single processes of a stack, and waits for what becomes of them."""

from __future__ import annotations

from callsheet.deploy.stack import Stack
from callsheet.managers.supervision.supervisor import Supervisor

from tests.support.waiting import until


async def kill_and_wait(stack: Stack, role: str) -> None:
    """Sends SIGKILL to a role's process and waits until it has ended."""
    pid = stack.pid(role)
    stack.supervisor(role).kill()
    await stack.supervisor(role).wait_for(lambda process: process is None or process.pid != pid)


async def wait_ended(stack: Stack, role: str) -> None:
    """Waits until no process of a role runs, as after a drain."""
    await stack.supervisor(role).wait_for(lambda process: process is None)


async def start_now(supervisor: Supervisor) -> None:
    """Ends the time for which a process that has ended stays away, and waits until it runs."""

    def is_back() -> bool:
        supervisor._away.cancel()
        return supervisor.process is not None

    await until(is_back)


async def start(stack: Stack, role: str) -> None:
    """Starts a role's process now if it has ended, and waits until it serves."""
    await start_now(stack.supervisor(role))


async def wait_serving(stack: Stack, role: str, *, other_than: int) -> int:
    """Waits until a process of a role serves that is not an earlier one, and returns its id."""
    await stack.supervisor(role).wait_for(lambda process: process is not None and process.pid != other_than)
    return stack.pid(role)
