"""Rewards that are commands: run in a sandbox, and told in the words of the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TypeAlias

import anyio
import anyio.to_thread
from callsheet.managers.ends import with_hint
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, PayloadAccess, Stopped
from callsheet.managers.sandbox.agent_client.command_defaults import CommandDefaults
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.commands.results import command_result, limit_failure, usage_of
from callsheet.managers.sandbox.errors import SandboxLostError
from callsheet.managers.sandbox.rewards.reference_runs import RunAfterReset, settle, wants_reference
from callsheet.managers.sandbox.rewards.runner_ends import cannot_start, killed_by
from callsheet.managers.sandbox.rewards.scoring import Score, no_score
from callsheet.managers.sandbox.rewards.script_score import Script, ScriptRun, read_script
from callsheet.managers.sandbox.rewards.test_suite import Suite, SuiteRun, read_suite
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.managers.sandbox.sharing.sandbox_use import SandboxUse
from callsheet.v1 import action_pb2, outcome_pb2
from callsheet.v1.rewards import CommandScorer

Look: TypeAlias = Callable[[], Awaitable[RunAfterReset | None]]
TEST_SUITE_SERVICE = "test-suite"
_STOP, _KILL, _RUN = (
    action_pb2.REWARD_BACKGROUND_STOP,
    action_pb2.REWARD_BACKGROUND_KILL,
    action_pb2.REWARD_BACKGROUND_RUN,
)
_LET_GO_SECONDS = 5.0
_HELD_BACK = "processes of earlier steps were stopped or killed before; a reward that needs them says background=RUN"


async def read_scorer(
    scorer: CommandScorer, payloads: PayloadAccess, settings: SandboxSettings, defaults: CommandDefaults
) -> Suite | Script:
    """Returns what a reward runs; raises what `read_files` and `read_command` raise."""
    if isinstance(scorer, action_pb2.TestSuiteInput):
        return await read_suite(scorer, payloads, settings, defaults)
    return await read_script(scorer, payloads, settings, defaults)


async def score_in_new_sandbox(
    runnable: Suite | Script,
    use: SandboxUse,
    make: Callable[[], Awaitable[AgentSandbox]],
) -> AttemptResult:
    """Scores in a sandbox that is made for it and destroyed afterwards.

    No policy has been there, but its work may be among the files: a runner is missing if it is so without them, too.
    """
    run = await run_in_new_sandbox(runnable, use, make)

    async def look() -> RunAfterReset:
        with use.off_the_clock():
            bare = await run_in_new_sandbox(replace(runnable, files=[]), use, make)
        return RunAfterReset(failure=cannot_start(bare.outcome))

    missing = cannot_start(run.outcome) and not run.outcome.stopped
    return await score_result(run, use.attempt, look=look if missing else None, try_again=comes_again(use.attempt))


def comes_again(attempt: Attempt) -> bool:
    """Whether another attempt begins with the same files. What its policy's code does it does again there."""
    return attempt.grant.attempt <= 1 and attempt.action.retry.max_attempts != 1


async def run_in_new_sandbox(
    runnable: Suite | Script, use: SandboxUse, make: Callable[[], Awaitable[AgentSandbox]]
) -> SuiteRun | ScriptRun:
    """Runs in a sandbox that is made for it and destroyed afterwards."""
    sandbox = await make()
    try:
        async with use.inside(sandbox):
            return await runnable.run(sandbox, use.units, use.stop)
    finally:
        await sandbox.destroy()


async def run_in_own_sandbox(
    scorer: CommandScorer, runnable: Suite | Script, sandbox: AgentSandbox, use: SandboxUse
) -> tuple[SuiteRun | ScriptRun, str]:
    """Runs in a sandbox in which others ran before; what they left running is held back until the score is read.

    Whoever runs at the same time could write a report or a score: its name stands on the scorer's command line.

    Returns:
        The run, and a hint for its failure.
    """
    background = scorer.background or (_STOP if sandbox.holds_safely else _KILL)
    if background == _RUN:
        return await runnable.run(sandbox, use.units, use.stop), ""
    hint = _HELD_BACK if await sandbox.has_processes() else ""
    async with _held_back(sandbox, kill=background == _KILL):
        return await runnable.run(sandbox, use.units, use.stop), hint


@asynccontextmanager
async def _held_back(sandbox: AgentSandbox, *, kill: bool) -> AsyncIterator[None]:
    """Keeps what others left running from going on; what does not stand still is killed."""
    if kill or not await sandbox.hold():
        await sandbox.kill()
    try:
        yield
    finally:
        if not kill and sandbox.loss is None:
            with anyio.move_on_after(_LET_GO_SECONDS, shield=True), suppress(SandboxLostError):
                await sandbox.let_go()


async def score_result(
    run: SuiteRun | ScriptRun, attempt: Attempt, hint: str = "", *, look: Look | None = None, try_again: bool = False
) -> AttemptResult:
    """Returns what the run of a scorer means for its attempt.

    Args:
        run: The run.
        attempt: Its attempt.
        hint: Told with a failure.
        look: Makes the same run on the state after reset, where there is one.
        try_again: Whether a runner that was killed may have been killed from outside.
    """
    outcome, usage = run.outcome, usage_of(run.outcome)
    reward = outcome_pb2.RewardResult(command=await command_result(outcome, attempt.payloads))
    partial = outcome_pb2.Succeeded(reward=reward)
    if outcome.stopped:
        return Stopped(partial, usage, hint)
    judged: Score | outcome_pb2.Failed | None = limit_failure(outcome, partial)
    if judged is None:
        # In a thread: a report of 32 MiB takes seconds, and whoever writes one must not hold up all others here.
        judged = await anyio.to_thread.run_sync(run.judge)
        if try_again and (number := killed_by(outcome)):
            message = f"the runner was ended by signal {number}, and nobody knows by whom"
            judged = no_score(outcome_pb2.FAILURE_KIND_INFRA, "runner_killed", message, outcome)
        elif look is not None and wants_reference(run, judged) and (reference := await look()) is not None:
            judged = settle(run, judged, reference)
    if isinstance(judged, Score):
        reward.score, reward.passed, reward.total = judged.score, judged.passed, judged.total
        reward.components.update(judged.components)
        return Completed(outcome_pb2.Succeeded(reward=reward), usage)
    judged.partial.CopyFrom(partial)
    judged.message = with_hint(judged.message, hint)
    return Broken(judged, usage)
