"""Ends and starts single processes of a stack, and waits for what becomes of them."""

from __future__ import annotations

from callsheet.deploy.stack import Stack


async def kill_and_wait(stack: Stack, role: str) -> None:
    """Sends SIGKILL to a role's process and waits until it has ended."""
    pid = stack.pid(role)
    stack.supervisor(role).kill()
    await stack.supervisor(role).wait_for(lambda process: process is None or process.pid != pid)


async def wait_ended(stack: Stack, role: str) -> None:
    """Waits until no process of a role runs, as after a drain."""
    await stack.supervisor(role).wait_for(lambda process: process is None)


async def start(stack: Stack, role: str) -> None:
    """Starts a role's process now if it has ended, and waits until it serves."""
    supervisor = stack.supervisor(role)
    if supervisor.process is None:
        supervisor.request_start()
    await supervisor.wait_for(lambda process: process is not None)


async def wait_serving(stack: Stack, role: str, *, other_than: int) -> int:
    """Waits until a process of a role serves that is not an earlier one, and returns its id."""
    await stack.supervisor(role).wait_for(lambda process: process is not None and process.pid != other_than)
    return stack.pid(role)
