"""The same run on the state after reset, where no policy has been: how many tests there are, and who is at fault.

What fails there as well is the environment's, and out of the mean. What fails only on what the policy left is the
policy's, and scores nothing.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

import anyio
from callsheet.managers.sandbox.rewards.runner_ends import lacks_a_module
from callsheet.managers.sandbox.rewards.scoring import Score, of_tests
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
    """

    tests: int = 0
    failure: str = ""


def reference_of(run: SuiteRun | ScriptRun) -> RunAfterReset:
    """Returns what a run on the state after reset tells."""
    judged = run.judge()
    if isinstance(judged, Score):
        # With another code some may not have been collected, as nothing was written yet.
        return RunAfterReset(judged.total if run.outcome.exit_code in {0, 1} else 0)
    began = judged.kind == outcome_pb2.FAILURE_KIND_POLICY
    unwritten = judged.reason != "runner_missing" and lacks_a_module(run.outcome)
    return RunAfterReset(failure="" if began or unwritten else f"{judged.reason}: {judged.message}")


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
    if isinstance(judged, outcome_pb2.Failed):
        judged.kind = outcome_pb2.FAILURE_KIND_ENV if reference.failure else outcome_pb2.FAILURE_KIND_POLICY
        also = f"so does the same run on the state after reset ({reference.failure})" if reference.failure else ""
        judged.message += f"; {also or 'the same run on the state after reset does not'}"
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


class RunsAfterReset:
    """Keeps what such runs told, and makes each of them once."""

    def __init__(self) -> None:
        """Nothing has been run."""
        self._kept: OrderedDict[str, RunAfterReset] = OrderedDict()
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def of(self, key: str, run: Callable[[], Awaitable[RunAfterReset]]) -> RunAfterReset:
        """Returns what a run told; `run` makes it. Siblings wait for the first of them."""
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = anyio.Lock()
        async with turn:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = await run()
            self._kept.move_to_end(key)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            return found
