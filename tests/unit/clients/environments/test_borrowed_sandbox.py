"""A trajectory's sandbox as trainers' tools use it, over a client in memory, and notes in traces of verifiers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from callsheet.client import (
    CommandResult,
    EnvReset,
    EnvResetResult,
    EnvStep,
    Failed,
    FailureKind,
    InfraError,
    Outcome,
    Reason,
    Succeeded,
    TrajectoryEnd,
)
from callsheet.client.testing import FakeClient
from callsheet.client.words.results import DownloadedFile
from callsheet.environments import EpisodeEnd, EpisodeFailure, EpisodeRecord, EpisodeScore, EpisodeTask, FailureRule
from callsheet.integrations.borrowed_sandbox import BorrowedSandbox, BorrowedSandboxSettings, ProgramEnd
from callsheet.integrations.verifiers.notes import note_end, note_episode, note_of


@pytest.fixture
def fake() -> FakeClient:
    fake = FakeClient()
    fake.on_env_reset(lambda _: Succeeded(EnvResetResult("s")))
    fake.on_env_step(lambda _: Succeeded(CommandResult(0, stdout=b"out", stderr=b"err")))
    return fake


async def sandbox_of(fake: FakeClient, settings: BorrowedSandboxSettings | None = None) -> BorrowedSandbox:
    job = await fake.open_job("job")
    return BorrowedSandbox(job.trajectory("t"), settings or BorrowedSandboxSettings())


async def test_it_is_made_when_it_is_first_used(fake: FakeClient) -> None:
    sandbox = await sandbox_of(fake, BorrowedSandboxSettings(image="python", environment={"A": "1"}))
    await sandbox.open()
    assert fake.submitted == []
    assert await sandbox.run(["/bin/echo", "hi"], {"B": "2"}) == ProgramEnd(0, "out", "err")
    await sandbox.write("file", b"text")
    reset, run, write = [submission.action for submission in fake.submitted]
    assert isinstance(reset, EnvReset)
    assert (reset.image, reset.defaults and reset.defaults.environment) == ("python", {"A": "1"})
    assert isinstance(run, EnvStep)
    assert isinstance(write, EnvStep)
    assert [file.content for file in write.files] == [b"text"]
    assert fake.submitted[1].options["label"] == "echo"
    await sandbox.close(TrajectoryEnd.COMPLETED)
    # What was closed by others, too, is closed.
    await sandbox.close(TrajectoryEnd.LOST)


async def test_an_environment_may_make_it(fake: FakeClient) -> None:
    sandbox = await sandbox_of(fake)
    await sandbox.open()
    sandbox.made_by_environment()
    await sandbox.run(["true"])
    assert [type(submission.action) for submission in fake.submitted] == [EnvStep]


@pytest.mark.parametrize(
    ("kind", "reason", "exit_code"),
    [
        (FailureKind.ENV, Reason.NO_SUCH_PROGRAM, 127),
        (FailureKind.POLICY, Reason.CANNOT_EXECUTE, 126),
        (FailureKind.TIMEOUT, Reason.START_TO_CLOSE, 124),
        (FailureKind.RESOURCE_LIMIT, Reason.OUT_OF_MEMORY, 137),
        (FailureKind.ENV, Reason.OTHER, 125),
    ],
)
async def test_what_a_program_brings_about_is_an_exit_code(
    fake: FakeClient, kind: FailureKind, reason: Reason, exit_code: int
) -> None:
    failed: Failed[CommandResult] = Failed(kind, reason, "because")
    fake.on_env_step(lambda _: failed)
    told = await (await sandbox_of(fake)).run(["program"])
    assert told.exit_code == exit_code
    assert "because" in told.stderr


async def test_a_failure_of_the_service_is_raised(fake: FakeClient) -> None:
    lost: Failed[CommandResult] = Failed(FailureKind.INFRA, Reason.STATE_LOST, "the node is gone")
    fake.on_env_step(lambda _: lost)
    with pytest.raises(InfraError, match="the node is gone"):
        await (await sandbox_of(fake)).run(["program"])


async def test_files_are_read_whole_or_up_to_a_bound(fake: FakeClient) -> None:
    def files(refusal: str) -> Callable[[EnvStep], Outcome[CommandResult]]:
        content = None if refusal else b"whole"
        return lambda step: Succeeded(CommandResult(0, b"who", downloads=(DownloadedFile("f", content, refusal),)))

    fake.on_env_step(files(""))
    sandbox = await sandbox_of(fake)
    assert await sandbox.read("f") == b"whole"
    assert await sandbox.read("f", 3) == b"who"
    fake.on_env_step(files("missing"))
    with pytest.raises(FileNotFoundError):
        await sandbox.read("f")
    fake.on_env_step(files("too_large"))
    with pytest.raises(OSError, match="too_large"):
        await sandbox.read("f")
    fake.on_env_step(lambda _: Succeeded(CommandResult(1, stderr=b"no such file")))
    with pytest.raises(FileNotFoundError, match="no such file"):
        await sandbox.read("f", 3)


@dataclass
class ToldError:
    """An error in a trace."""

    type: str
    message: str


@dataclass
class ToldTrace:
    """What Callsheet uses of a trace."""

    ok: bool = True
    last_error: ToldError | None = None
    info: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    def record_metrics(self, values: Any) -> None:
        self.figures.update(values)


def record_of(score: float | None, failure: EpisodeFailure | None = None) -> EpisodeRecord:
    end = EpisodeEnd.DONE if failure is None else EpisodeEnd.FAILED
    return EpisodeRecord(
        EpisodeTask("task"), "t", end, None if score is None else EpisodeScore(score, {"part": 0.5}), failure
    )


def test_a_scored_episode_is_noted() -> None:
    trace = ToldTrace()
    assert note_episode(trace, record_of(0.5), FailureRule()).reward == 0.5
    assert note_end(trace, "t") == (TrajectoryEnd.COMPLETED, "")
    assert note_of(trace)["trajectory"] == "t"
    assert trace.figures == {"part": 0.5, "callsheet_excluded": 0.0, "callsheet_failed": 0.0}


def test_a_failed_episode_is_a_sample_and_counted() -> None:
    trace = ToldTrace()
    failure = EpisodeFailure(FailureKind.ENV, "set_up_failed")
    assert note_episode(trace, record_of(None, failure), FailureRule()).reward == 0.0
    assert note_end(trace, "t") == (TrajectoryEnd.ABANDONED, "ENV/set_up_failed")
    assert trace.figures == {"callsheet_excluded": 0.0, "callsheet_failed": 1.0}


def test_what_is_no_sample_is_counted_and_closed_as_lost() -> None:
    trace = ToldTrace()
    failure = EpisodeFailure(FailureKind.INFRA, "state_lost")
    assert note_episode(trace, record_of(None, failure), FailureRule()).is_excluded
    trace.ok, trace.last_error = False, ToldError("SandboxError", "INFRA state_lost")
    assert note_end(trace, "t") == (TrajectoryEnd.LOST, "SandboxError: INFRA state_lost")
    assert trace.figures == {"callsheet_excluded": 1.0, "callsheet_failed": 0.0}
    trace.last_error = ToldError("TaskError", "a mistake")
    assert note_end(trace, "t")[0] is TrajectoryEnd.ABANDONED
