"""Rewards that are commands: run in a sandbox, and told in the words of the contract."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from callsheet.managers.ends import with_hint
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, PayloadAccess, Stopped
from callsheet.managers.sandbox.agent_client.command_defaults import CommandDefaults
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import Sizes, suffices
from callsheet.managers.sandbox.commands.results import command_result, limit_failure, usage_of
from callsheet.managers.sandbox.errors import SandboxLostError, StoppedError
from callsheet.managers.sandbox.rewards.runner_ends import cannot_start, cut_short, killed_by, lacks_a_module
from callsheet.managers.sandbox.rewards.scoring import (
    Score,
    Script,
    ScriptRun,
    Suite,
    SuiteRun,
    no_score,
    of_tests,
    read_script,
    read_suite,
)
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.managers.sandbox.sharing.sandbox_use import SandboxUse
from callsheet.v1 import action_pb2, outcome_pb2
from callsheet.v1.rewards import CommandScorer
from google.protobuf.message import Message

# The same run on the state after reset, where no policy has been: how many tests there are, and who is at fault.
#
# What fails there as well is the environment's, and out of the mean. What fails only on what the policy left is the
# policy's, and scores nothing.

_MOST_KEPT = 4096


@dataclass(frozen=True, slots=True)
class RunAfterReset:
    """How a run ended on the state after reset.

    Attributes:
        tests: The tests that ran; 0 where that is not known.
        failure: Why it has no score, which nobody but the environment can be blamed for; empty where it has one.
        missing: Why there is no such run to compare with; empty if there is one.
        kind: Whose fault that is.
        holds: Whether other rewards may be judged by it: it met no limit and no signal.
        cut: Whether it came to no end of its own: it was ended before, or it could not begin. Only such a run explains
            a reward that was ended before its end, even if it is `missing` for all others.
    """

    tests: int = 0
    failure: str = ""
    missing: str = ""
    kind: outcome_pb2.FailureKind.ValueType = outcome_pb2.FAILURE_KIND_ENV
    holds: bool = True
    cut: bool = False


def reference_of(run: SuiteRun | ScriptRun) -> RunAfterReset:
    """Returns what a run on the state after reset tells."""
    outcome, holds = run.outcome, not run.outcome.met_limit
    limit = limit_failure(outcome, outcome_pb2.Succeeded())
    if limit is not None:
        return RunAfterReset(missing=limit.message, holds=False)
    judged = run.judge()
    if isinstance(judged, Score):
        # With another code some may not have been collected, as nothing was written yet.
        return RunAfterReset(judged.total if outcome.exit_code in {0, 1} else 0, holds=holds)
    failure = f"{judged.reason}: {judged.message}"
    if cut_short(outcome):
        return RunAfterReset(
            failure=failure, missing=f"it was ended before its end: {outcome.end}", holds=False, cut=True
        )
    cut = judged.reason == "runner_missing"
    began = judged.kind == outcome_pb2.FAILURE_KIND_POLICY or (not cut and lacks_a_module(outcome))
    return RunAfterReset(failure="" if began else failure, holds=holds, cut=cut)


def wants_reference(run: SuiteRun | ScriptRun, judged: Score | outcome_pb2.Failed) -> bool:
    """Whether the verdict of a run depends on the same run on the state after reset."""
    if isinstance(judged, outcome_pb2.Failed):
        return judged.reason != "tests_missing"
    # A score of 0 needs no proof.
    return judged.score > 0 and judged.total > 0 and not (isinstance(run, SuiteRun) and run.tests)


def settle(
    run: SuiteRun | ScriptRun, judged: Score | outcome_pb2.Failed, reference: RunAfterReset
) -> Score | outcome_pb2.Failed:
    """Returns the verdict of a run in the light of the same run on the state after reset."""
    fails_alike = reference.cut if cut_short(run.outcome) else bool(reference.failure) and not reference.missing
    if reference.missing and not fails_alike:
        unseen = f"there is no run on the state after reset to compare with: {reference.missing}"
        if isinstance(judged, outcome_pb2.Failed):
            judged.message += f"; {unseen}"
            return judged
        message = f"the number of tests was not checked, as none was declared and {unseen}"
        return no_score(reference.kind, "tests_unchecked", message, run.outcome)
    if isinstance(judged, outcome_pb2.Failed):
        judged.kind = outcome_pb2.FAILURE_KIND_ENV if fails_alike else outcome_pb2.FAILURE_KIND_POLICY
        also = f"so does the same run on the state after reset ({reference.failure})" if fails_alike else ""
        judged.message += f"; {also or 'the same run on the state after reset does not end in that way'}"
        return judged
    counted = of_tests(judged.passed, judged.total, reference.tests, run.outcome)
    # A script says itself what its counts are worth.
    return judged if isinstance(counted, Score) and judged.components else counted


def reference_key(*parts: str | Message) -> str:
    """Returns a name of a run on a state: the same for the same image, set-up, files and command."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part.SerializeToString(deterministic=True)
        digest.update(f"{len(content)}:".encode() + content)
    return digest.hexdigest()


Look: TypeAlias = Callable[[], Awaitable[RunAfterReset]]


@dataclass(eq=False)
class _Turn:
    """Siblings that wait for one run, and its result."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    told: RunAfterReset | None = None


class RunsAfterReset:
    """Keeps the results of such runs, and makes each of them once.

    The result of a run that met a limit is not kept. Only rewards that waited for that run get its result.
    """

    def __init__(self) -> None:
        """Nothing has been run."""
        self._kept: OrderedDict[tuple[str, Sizes], RunAfterReset] = OrderedDict()
        self._turns: WeakValueDictionary[tuple[Hashable, str, Sizes], _Turn] = WeakValueDictionary()

    async def of(self, key: str, sizes: Sizes, group: Hashable, run: Look) -> RunAfterReset:
        """Returns the result of a run that had no less than these sizes; `run` makes it.

        Siblings of one group wait for the first of them. No job waits for another one, which may have fewer cores.
        """
        place = (group, key, sizes)
        turn = self._turns.setdefault(place, _Turn())
        async with turn.lock:
            name = next((each for each in self._kept if each[0] == key and suffices(each[1], sizes)), None)
            if name is None:
                if turn.told is None:
                    turn.told = await run()
                    # Rewards that come from now on did not wait for it.
                    self._turns.pop(place, None)
                name, told = (key, sizes), turn.told
                if not told.holds:
                    return told
                self._kept[name] = told
            self._kept.move_to_end(name)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            return self._kept[name]


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
    """Whether another attempt begins with the same files. What its policy's code does it does again there."""
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
