"""Rewards that are commands: run in a sandbox, and told in the words of the contract."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import anyio
import anyio.to_thread
from callsheet.managers.ends import with_hint
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, PayloadAccess, Stopped
from callsheet.managers.sandbox.agent_client.command_defaults import CommandDefaults
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.commands.results import command_result, limit_failure, usage_of
from callsheet.managers.sandbox.errors import SandboxLostError, StoppedError
from callsheet.managers.sandbox.rewards.reference_runs import Look, RunAfterReset, settle, wants_reference
from callsheet.managers.sandbox.rewards.runner_ends import cannot_start, cut_short, killed_by
from callsheet.managers.sandbox.rewards.scoring import Score, no_score
from callsheet.managers.sandbox.rewards.script_score import Script, ScriptRun, read_script
from callsheet.managers.sandbox.rewards.test_suite import Suite, SuiteRun, read_suite
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.managers.sandbox.sharing.sandbox_use import SandboxUse
from callsheet.v1 import action_pb2, outcome_pb2
from callsheet.v1.rewards import CommandScorer

TEST_SUITE_SERVICE = "test-suite"
_STOP, _KILL, _RUN = (
    action_pb2.REWARD_BACKGROUND_STOP,
    action_pb2.REWARD_BACKGROUND_KILL,
    action_pb2.REWARD_BACKGROUND_RUN,
)
_LET_GO_SECONDS = 5.0
# For a reward that has no limit of its own.
_REFERENCE_S = 600.0
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

    No policy has been there, but its work may be among the files: the environment is at fault if a runner is missing,
    or ended before its end, without them, too.
    """
    run = await run_in_new_sandbox(runnable, use, make)

    async def look() -> RunAfterReset:
        limit_s = reference_limit_s(use.attempt)
        try:
            with use.off_the_clock():
                bare = (await run_in_new_sandbox(replace(runnable, files=[]), use, make, limit_s)).outcome
        except TimeoutError:
            return RunAfterReset(missing=f"it took more than {limit_s:g} s")
        if bare.stopped:
            raise StoppedError
        # A runner that begins with the files, and that a signal ends, cannot begin without them.
        failure = (bare.end if cut_short(bare) else "") if ended else cannot_start(bare)
        return RunAfterReset(failure=failure, cut=bool(failure))

    ended = cut_short(run.outcome)
    looks = not run.outcome.stopped and (ended or cannot_start(run.outcome))
    return await score_result(run, use.attempt, look=look if looks else None, try_again=comes_again(use.attempt))


def reference_limit_s(attempt: Attempt) -> float:
    """Returns the seconds that the run on the state after reset may take: as many as the reward itself."""
    return attempt.action.timeouts.start_to_close.ToTimedelta().total_seconds() or _REFERENCE_S


def comes_again(attempt: Attempt) -> bool:
    """Returns whether another attempt begins with the same files. What its policy's code does it does again there."""
    return attempt.grant.attempt <= 1 and attempt.action.retry.max_attempts != 1


async def run_in_new_sandbox(
    runnable: Suite | Script, use: SandboxUse, make: Callable[[], Awaitable[AgentSandbox]], limit_s: float = math.inf
) -> SuiteRun | ScriptRun:
    """Runs in a sandbox that is made for it and destroyed afterwards.

    Raises:
        TimeoutError: It ran for more than `limit_s` seconds, after the sandbox was made and had its memory.
    """
    sandbox = await make()
    try:
        async with use.inside(sandbox):
            with anyio.fail_after(limit_s):
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


def _may_look(attempt: Attempt) -> bool:
    """Returns whether an attempt that is out of its time may make the run on the state after reset.

    It may if nobody wants it to stop, and if both runs fit into the time that its action has in all.
    """
    timeouts, limit_s = attempt.action.timeouts, attempt.grant.start_to_close.ToTimedelta().total_seconds()
    close_s = timeouts.schedule_to_close.ToTimedelta().total_seconds() or math.inf
    wait_s = timeouts.schedule_to_start.ToTimedelta().total_seconds()
    return not attempt.stop_requested.is_set() and wait_s + 2 * limit_s <= close_s


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
    judged: Score | outcome_pb2.Failed | None = None
    if outcome.stopped:
        reference = await look() if look is not None and _may_look(attempt) else RunAfterReset()
        if reference.cut:
            message = "the runner did not end in its time"
            judged = settle(run, no_score(outcome_pb2.FAILURE_KIND_ENV, "runner_ended", message, outcome), reference)
        else:
            # Only its time can be over before that.
            await attempt.stop_requested.wait()
            return Stopped(partial, usage, hint)
    if judged is None:
        judged = limit_failure(outcome, partial)
    if judged is None:
        # In a thread: a report of 32 MiB takes seconds, and whoever writes one must not hold up all others here.
        judged = await anyio.to_thread.run_sync(run.judge)
        if try_again and (number := killed_by(outcome)):
            message = f"the runner was ended by signal {number}, and nobody knows by whom"
            judged = no_score(outcome_pb2.FAILURE_KIND_INFRA, "runner_killed", message, outcome)
        elif look is not None and wants_reference(run, judged):
            judged = settle(run, judged, await look())
    if isinstance(judged, Score):
        reward.score, reward.passed, reward.total = judged.score, judged.passed, judged.total
        reward.components.update(judged.components)
        return Completed(outcome_pb2.Succeeded(reward=reward), usage)
    judged.partial.CopyFrom(partial)
    judged.message = with_hint(judged.message, hint)
    return Broken(judged, usage)
