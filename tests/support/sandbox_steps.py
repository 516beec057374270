"""Steps of a sandbox's sessions, spelled shortly."""

from __future__ import annotations

import anyio
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, SessionLanguage, SessionUse, StepSpec

from tests.support.sandboxes import ANSWER_SECONDS, until_file

GOES_ON = SessionUse(started=False, ended=False)


async def sh(sandbox: AgentSandbox, text: str, name: str = "main", stop: anyio.Event | None = None) -> CommandOutcome:
    """Runs a step of a shell session to its end."""
    with anyio.fail_after(ANSWER_SECONDS):
        return await sandbox.run_step(StepSpec(name, SessionLanguage.SHELL, text), stop or anyio.Event())


async def py(sandbox: AgentSandbox, text: str, name: str = "main", stop: anyio.Event | None = None) -> CommandOutcome:
    """Runs a step of a Python session to its end."""
    with anyio.fail_after(ANSWER_SECONDS):
        return await sandbox.run_step(StepSpec(name, SessionLanguage.PYTHON, text), stop or anyio.Event())


async def stopped_while(sandbox: AgentSandbox, step: StepSpec, ready: str = "ready") -> CommandOutcome:
    """Stops a step once its file is there."""
    stop = anyio.Event()
    outcomes = []

    async def run() -> None:
        outcomes.append(await sandbox.run_step(step, stop))

    with anyio.fail_after(ANSWER_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until_file(sandbox, ready)
            stop.set()
    return outcomes[0]
