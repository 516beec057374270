"""How runners end, and what the same run on the state after reset says of it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

import anyio
import pytest
from callsheet.managers.executor import Attempt, Broken
from callsheet.managers.sandbox.backend import CommandOutcome
from callsheet.managers.sandbox.memory_ledger import MemoryLedger
from callsheet.managers.sandbox.node_sharing import NodeSharingSettings
from callsheet.managers.sandbox.rewards.reference_runs import (
    RunAfterReset,
    RunsAfterReset,
    reference_of,
    settle,
    wants_reference,
)
from callsheet.managers.sandbox.rewards.rewards import score_result
from callsheet.managers.sandbox.rewards.runner_ends import cannot_start, killed_by, lacks_a_module
from callsheet.managers.sandbox.rewards.scoring import Score, no_score
from callsheet.managers.sandbox.rewards.script_score import ScriptRun
from callsheet.managers.sandbox.rewards.test_suite import SuiteRun
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.managers.sandbox.sharing.memory_gate import MemoryGate
from callsheet.managers.sandbox.sharing.sandbox_use import SandboxUse
from callsheet.managers.sandbox.sharing.shared_cores import SharedCores
from callsheet.timing.waits import Cause
from callsheet.v1 import outcome_pb2

from tests.support.sandbox_attempts import attempt_of, step, suite
from tests.support.waiting import block_until

RIGHT = b"<testsuite><testcase/><testcase/></testsuite>"


def ended(exit_code: int = 0, signal: int = 0, stderr: str = "", stdout: str = "") -> CommandOutcome:
    return CommandOutcome(exit_code or -signal, signal, stdout.encode(), stderr.encode(), 0, 0, 1.0, 1.0, 0)


def failure(judged: object) -> tuple[str, str]:
    """Returns the kind and the reason of a failure."""
    assert isinstance(judged, outcome_pb2.Failed), judged
    return outcome_pb2.FailureKind.Name(judged.kind).removeprefix("FAILURE_KIND_"), judged.reason


@pytest.mark.parametrize(
    ("outcome", "number"),
    [
        (ended(), 0),
        (ended(1), 0),
        (ended(0, 9), 9),
        (ended(0, 2), 2),
        (ended(137), 9),
        (ended(143), 15),
        (ended(247), 9),
        (ended(254), 2),
        (ended(1, stderr="Killed\n"), 9),
        (ended(1, stderr="bash: line 3:  4711 Killed                  pytest -q\n"), 9),
        (ended(0, stderr="Killed\n"), 0),
        # What a program does to itself.
        (ended(0, 11), 0),
        (ended(139), 0),
        (ended(134), 0),
        (ended(255), 0),
        (ended(1, stderr="Killed the dragon\n"), 0),
    ],
)
def test_signals_of_others_are_told_in_each_shape(outcome: CommandOutcome, number: int) -> None:
    assert killed_by(outcome) == number


@pytest.mark.parametrize(
    "outcome",
    [
        ended(127, stderr="sh: 1: pytest: not found"),
        ended(127, stderr="bash: line 1: pytest: command not found"),
        ended(127, stderr="timeout: failed to run command \u2018pytest\u2019: No such file or directory"),
        ended(127, stderr="'pytest': No such file or directory"),
        ended(127, stderr="pytest: error while loading shared libraries: libz.so: cannot open shared object file"),
        ended(126, stderr="working directory 'a/b': No such file or directory"),
        ended(126, stderr="sh: 1: /usr/bin/pytest: Permission denied"),
        ended(127),
        ended(1, stderr="/usr/bin/python3: No module named pytest"),
        ended(1, stderr="python: No module named pytest.__main__; 'pytest' is a package"),
        ended(1, stderr="Traceback\nModuleNotFoundError: No module named 'pytest'"),
        ended(1, stdout="E   ModuleNotFoundError: No module named 'pluggy'"),
    ],
)
def test_a_runner_that_cannot_begin_says_so(outcome: CommandOutcome) -> None:
    assert cannot_start(outcome)
    assert failure(SuiteRun(outcome, True, None).judge()) == ("ENV", "runner_missing")
    assert reference_of(SuiteRun(outcome, True, None)).failure


@pytest.mark.parametrize(
    "outcome",
    [
        ended(0, stdout="sh: 1: pytest: not found"),
        ended(1, stderr="ModuleNotFoundError: No module named 'solution'"),
        ended(1, stdout="E   ModuleNotFoundError: No module named 'solution.pytest'"),
        ended(127, stderr="sh: 1: ./solution: not found"),
        ended(127, stderr="bash: line 1: build/run: No such file or directory"),
        ended(126, stderr="'/work/solution': Permission denied"),
        ended(2, stderr="it said: No module named pytestx"),
    ],
)
def test_what_the_policy_was_to_write_is_no_runner(outcome: CommandOutcome) -> None:
    assert not cannot_start(outcome)


def test_a_module_that_is_not_there_yet_is_nobodys_failure_at_the_reset() -> None:
    unwritten = ended(1, stderr="ImportError: cannot import name 'f' from 'solution'")
    assert lacks_a_module(unwritten)
    assert reference_of(SuiteRun(unwritten, True, None)) == RunAfterReset()
    assert reference_of(ScriptRun(unwritten, None)) == RunAfterReset()
    assert reference_of(ScriptRun(ended(3), None)).failure.startswith("script_failed: ")
    # It began, and so it is not missing.
    assert reference_of(SuiteRun(ended(1), True, b"<broken")) == RunAfterReset()
    assert reference_of(SuiteRun(ended(4), True, None)).failure.startswith("no_report: ")


def test_a_run_on_the_state_after_reset_tells_how_many_tests_there_are() -> None:
    assert reference_of(SuiteRun(ended(0), True, RIGHT)) == RunAfterReset(tests=2)
    # What could not be collected is not known to be all.
    failed = b"<testsuite><testcase><error/></testcase></testsuite>"
    assert reference_of(SuiteRun(ended(1), True, failed)) == RunAfterReset(tests=1)
    assert reference_of(SuiteRun(ended(2), True, failed)) == RunAfterReset()


def test_only_what_would_count_is_proved() -> None:
    right, run = Score(1.0, 2, 2), SuiteRun(ended(), True, RIGHT)
    proved = [(replace(run, tests=2), right), (run, Score(0.0, 0, 2)), (SuiteRun(ended(), False, None), Score(1.0))]
    assert [wants_reference(*each) for each in ((run, right), *proved)] == [True, False, False, False]


def test_the_fault_is_the_environments_only_if_the_reset_has_it_too() -> None:
    run = SuiteRun(ended(0), True, None)
    references = (RunAfterReset(tests=2), RunAfterReset(failure="no_report"))
    assert [failure(settle(run, run.judge(), each))[0] for each in references] == ["POLICY", "ENV"]
    missing = settle(SuiteRun(ended(), True, RIGHT), Score(1.0, 2, 2), RunAfterReset(tests=3))
    assert failure(missing)[1] == "tests_missing"
    # A script's own score stays as it is, or does not count.
    script, counted = ScriptRun(ended(), b""), Score(0.25, 3, 4, {"score": 0.25})
    assert settle(script, counted, RunAfterReset(tests=4)) == counted
    assert isinstance(settle(script, counted, RunAfterReset(tests=5)), outcome_pb2.Failed)


def _is_past(moment: float) -> bool:
    return monotonic() > moment


def test_what_an_attempt_sees_after_reset_is_not_charged_to_it(tmp_path: Path) -> None:
    gate = MemoryGate(MemoryLedger(None))
    for cores in (None, SharedCores(frozenset({0}), NodeSharingSettings())):
        attempt = attempt_of(step("true"))
        use = SandboxUse(attempt, SandboxSettings(manager_id="m", data_directory=tmp_path), cores, gate)
        with use.off_the_clock():
            clock = attempt.execution_clock
            assert clock is not None
            counted = clock(0.0)
            assert clock(1e9) == counted
            shortest = monotonic() + 0.01
            block_until(partial(_is_past, shortest))
        clock = attempt.execution_clock
        assert clock is not None
        assert clock(0.0) == counted
        assert clock(2e9) - clock(1e9) == pytest.approx(1e9)
        assert attempt.waits.stood.keys() == {Cause.REFERENCE}
        assert not attempt.waits.seconds


@pytest.mark.anyio
async def test_a_state_is_looked_at_once_and_again_if_nobody_saw_it() -> None:
    runs, seen, numbers = RunsAfterReset(), list[RunAfterReset](), itertools.count(1)

    async def look() -> RunAfterReset:
        number = next(numbers)
        await anyio.lowlevel.checkpoint()
        if number == 1:
            raise OSError
        return RunAfterReset(tests=number, holds=number not in {2, 7})

    async def ask(key: str, *sizes: int, job: str = "job") -> None:
        try:
            seen.append(await runs.of(key, sizes, job, look))
        except OSError:
            seen.append(RunAfterReset())

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(ask, "one")
    assert seen == [RunAfterReset(), *[RunAfterReset(tests=2, holds=False)] * 3]
    for key, told in (("one", 3), ("another", 4)):
        await ask(key)
        assert seen[-1] == RunAfterReset(tests=told)
    # By whoever asks for no more than it had; what met a limit holds for nobody else.
    for sizes, told in (((64, 8), 5), ((64, 7), 5), ((65, 8), 6), ((64, 9), 7), ((64, 9), 8), ((63, 8), 5)):
        await ask("third", *sizes, job=f"job-{told}")
        assert seen[-1].tests == told, sizes


# Each with the verdict of a reward that was ended before its end, or that ran out of its time.
AFTER_RESET = {
    "ends": (ended(), ("POLICY", "TIMEOUT")),
    "fails": (ended(1), ("POLICY", "TIMEOUT")),
    "crashes": (ended(signal=11), ("POLICY", "TIMEOUT")),
    "is killed": (ended(signal=9), ("ENV", "ENV")),
    "is killed, as a shell says": (ended(137), ("ENV", "ENV")),
    "runs out of its own time": (ended(124), ("ENV", "ENV")),
    "cannot begin": (ended(127, stderr="sh: 1: pytest: not found"), ("ENV", "ENV")),
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", AFTER_RESET)
async def test_only_a_run_that_was_ended_too_explains_one_that_was_ended(name: str) -> None:
    reference, verdicts = AFTER_RESET[name]
    stopped = replace(ended(signal=9), stopped=True)
    for outcome, verdict in zip((ended(137), ended(124), stopped), (verdicts[0], *verdicts), strict=True):
        for run in (ScriptRun(outcome, None), SuiteRun(outcome, True, None), SuiteRun(outcome, False, None)):
            attempt = attempt_of(suite("true"))

            async def look(attempt: Attempt = attempt) -> RunAfterReset:
                attempt.stop_requested.set()
                return reference_of(ScriptRun(reference, b"1"))

            result = await score_result(run, attempt, look=look)
            kind = result.failed.kind if isinstance(result, Broken) else outcome_pb2.FAILURE_KIND_TIMEOUT
            assert outcome_pb2.FailureKind.Name(kind) == f"FAILURE_KIND_{verdict}", (outcome, run)


@pytest.mark.parametrize(
    "outcome",
    [replace(ended(1), out_of_memory=True), replace(ended(1), process_limit=True), ended(signal=9), ended(137)],
)
def test_a_score_by_counts_needs_a_run_to_compare_with(outcome: CommandOutcome) -> None:
    reference, run = reference_of(SuiteRun(outcome, True, None)), SuiteRun(ended(0), True, RIGHT)
    assert (bool(reference.missing), reference.holds) == (True, False)
    failed = no_score(outcome_pb2.FAILURE_KIND_POLICY, "no_report", "none", run.outcome)
    settled = [settle(run, judged, reference) for judged in (Score(1.0, 2, 2), failed)]
    assert [failure(each) for each in settled] == [("ENV", "tests_unchecked"), ("POLICY", "no_report")]
    assert all(isinstance(each, outcome_pb2.Failed) and reference.missing in each.message for each in settled)
