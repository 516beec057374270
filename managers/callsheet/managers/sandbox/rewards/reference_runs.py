"""The same run on the state after reset, where no policy has been: its number of tests, and whose fault a failure is.

If a run fails there as well, the environment is at fault, and the reward stays out of the mean. If it fails only on the
state that the policy left, the policy is at fault, and the reward is a failure of kind POLICY.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from callsheet.managers.sandbox.backend import Sizes, suffices
from callsheet.managers.sandbox.commands.results import limit_failure
from callsheet.managers.sandbox.rewards.runner_ends import cut_short, lacks_a_module
from callsheet.managers.sandbox.rewards.scoring import Score, no_score, of_tests
from callsheet.managers.sandbox.rewards.script_score import ScriptRun
from callsheet.managers.sandbox.rewards.test_suite import SuiteRun
from callsheet.v1 import outcome_pb2
from google.protobuf.message import Message

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
    """Returns whether the verdict of a run depends on the same run on the state after reset."""
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
