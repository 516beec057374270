"""What is stopped or destroyed in the background lane ends at once, although others take all of its core."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, StepSpec
from callsheet.managers.sandbox.backend import SessionLanguage as Language
from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.sandbox.errors import SandboxLostError
from callsheet.managers.sandbox.node_sharing import Lane
from callsheet.managers.sandbox.settings import CoreSharing, Isolation, SandboxSettings

from tests.support.sandbox_steps import GOES_ON, sh
from tests.support.sandboxes import (
    ANSWER_SECONDS,
    Variant,
    open_sandboxes,
    settings_for,
    until_file,
    variants,
)

pytestmark = pytest.mark.anyio

# A tree of processes that use all they get.
_BUSY = "for n in 1 2 3 4; do (while :; do :; done) & done; touch busy; wait"


@pytest.fixture(params=variants(*Isolation, others_by_night=True), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    variant: Variant = request.param
    made = settings_for(variant, tmp_path)
    return replace(made, core_sharing=CoreSharing.RANKED, cores=frozenset([min(made.cores)]))


@asynccontextmanager
async def _beside_busy_ones(settings: SandboxSettings) -> AsyncIterator[AgentSandbox]:
    """A sandbox on a core that another one keeps busy in the foreground."""
    async with open_sandboxes(settings, "demoted", "busy") as (sandbox, other), anyio.create_task_group() as tasks:
        stop = anyio.Event()
        tasks.start_soon(other.execute, CommandSpec(("/bin/sh", "-c", _BUSY)), stop)
        await until_file(other, "busy")
        yield sandbox
        stop.set()


async def _stopped_in_the_background(sandbox: AgentSandbox) -> CommandOutcome:
    stop = anyio.Event()
    outcomes: list[CommandOutcome] = []

    async def execute() -> None:
        outcomes.append(await sandbox.execute(CommandSpec(("/bin/sh", "-c", _BUSY)), stop))

    with anyio.fail_after(ANSWER_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(execute)
            await until_file(sandbox, "busy")
            await sandbox.set_lane(Lane.BACKGROUND)
            stop.set()
    return outcomes[0]


async def test_a_stopped_command_ends_and_its_sandbox_stays(settings: SandboxSettings) -> None:
    async with _beside_busy_ones(settings) as sandbox:
        outcome = await _stopped_in_the_background(sandbox)
        # It may have ended before it was taken out of the background. What comes after it is where it is put.
        await sandbox.set_lane(Lane.FOREGROUND)
        await sandbox.set_lane(Lane.BACKGROUND)
        after = sandbox.lane, sandbox.loss
    assert outcome.stopped
    assert after == (Lane.BACKGROUND, None)


async def test_a_stopped_step_ends_and_its_session_stays(settings: SandboxSettings) -> None:
    async with _beside_busy_ones(settings) as sandbox:
        await sh(sandbox, "x=1")
        stop = anyio.Event()
        with anyio.fail_after(ANSWER_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(
                    sandbox.run_step, StepSpec("main", Language.SHELL, "touch ready; while :; do :; done"), stop
                )
                await until_file(sandbox, "ready")
                await sandbox.set_lane(Lane.BACKGROUND)
                stop.set()
        after = await sh(sandbox, "echo $x")
    assert (after.stdout, after.session) == (b"1\n", GOES_ON)


async def test_a_destroyed_sandbox_leaves_no_group(settings: SandboxSettings) -> None:
    before = _groups()
    async with _beside_busy_ones(settings) as sandbox:
        with anyio.fail_after(ANSWER_SECONDS), pytest.RaisesGroup(SandboxLostError):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sandbox.execute, CommandSpec(("/bin/sh", "-c", _BUSY)), anyio.Event())
                await until_file(sandbox, "busy")
                await sandbox.set_lane(Lane.BACKGROUND)
                await sandbox.destroy()
    assert _groups() <= before


def _groups() -> set[str]:
    """The groups of such sandboxes on this machine."""
    layout = probe_layout()
    parents = layout.directories() if layout is not None else []
    return {f"{parent}/{name}" for parent in parents for name in os.listdir(parent) if name.endswith("-demoted")}
