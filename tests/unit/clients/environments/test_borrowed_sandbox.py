"""A trajectory's sandbox as trainers' tools use it, over a client in memory, and notes in traces of verifiers."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from callsheet.client import (
    CommandResult,
    EnvReset,
    EnvResetResult,
    EnvStep,
    Failed,
    FailureKind,
    ImageBuild,
    InfraError,
    Outcome,
    Reason,
    Succeeded,
    TrajectoryEnd,
)
from callsheet.client.testing import FakeClient
from callsheet.environments import EpisodeEnd, EpisodeFailure, EpisodeRecord, EpisodeScore, EpisodeTask, FailureRule
from callsheet.integrations.borrowed_sandbox import PART_BYTES, BorrowedSandbox, BorrowedSandboxSettings, ProgramEnd
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
    assert (write.command.program[-1], write.command.stdin) == ("file", b"text")
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
    assert (told.exit_code, "because" in told.stderr) == (exit_code, True)


async def test_a_failure_of_the_service_is_raised(fake: FakeClient) -> None:
    lost: Failed[CommandResult] = Failed(FailureKind.INFRA, Reason.STATE_LOST, "the node is gone")
    fake.on_env_step(lambda _: lost)
    with pytest.raises(InfraError, match="the node is gone"):
        await (await sandbox_of(fake)).run(["program"])


def run_here(step: EnvStep) -> Outcome[CommandResult]:
    """Runs a program of a step on this machine, as a sandbox's manager would."""
    of = step.command
    done = subprocess.run(list(of.program), check=False, capture_output=True, input=of.stdin, env={**os.environ})
    assert of.max_output_bytes is None or len(done.stdout) <= of.max_output_bytes
    return Succeeded(CommandResult(done.returncode, done.stdout, done.stderr))


async def test_files_are_read_whole_or_up_to_a_bound(fake: FakeClient, tmp_path: Path) -> None:
    fake.on_env_step(run_here)
    sandbox = await sandbox_of(fake)
    for size in (0, 3, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 5):
        content = random.Random(size).randbytes(size)
        place = tmp_path / "-new" / "a b" / str(size)
        await sandbox.write(str(place), content)
        assert place.read_bytes() == await sandbox.read(str(place)) == content
        for most in (1, PART_BYTES, PART_BYTES + 1, size + 1):
            assert await sandbox.read(str(place), most) == content[:most]
    await sandbox.write(str(place), b"less")
    assert place.read_bytes() == b"less"


async def test_a_file_that_cannot_be_read_or_written_says_why(fake: FakeClient, tmp_path: Path) -> None:
    fake.on_env_step(run_here)
    sandbox = await sandbox_of(fake)
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for refused, error, told in (
        (sandbox.read(f"{tmp_path}/gone"), FileNotFoundError, "gone"),
        (sandbox.read(f"{tmp_path}"), IsADirectoryError, ""),
        (sandbox.write(f"{tmp_path}", b""), IsADirectoryError, ""),
        (sandbox.read(f"{tmp_path}/pipe"), OSError, "Invalid argument"),
        (sandbox.write(f"{tmp_path}/pipe", b""), OSError, "Invalid argument"),
        (sandbox.write(f"{tmp_path}/file/below", b""), OSError, "below"),
        (sandbox.write("/dev/full", b"content"), OSError, "No space left"),
        (sandbox.write("/proc/no-such-place", b""), OSError, "proc"),
    ):
        with pytest.raises(error, match=told or None):
            await refused


@pytest.mark.parametrize(
    ("exit_code", "told", "expected"),
    [
        (errno.EACCES, b"", PermissionError),
        (errno.EIO, b"cat: file: Permission denied", PermissionError),
        (errno.EIO, b"mkdir: cannot create directory: Read-only file system", OSError),
        (1, b"head: something of its own", OSError),
    ],
)
async def test_an_exit_code_or_the_last_words_name_the_error(
    fake: FakeClient, exit_code: int, told: bytes, expected: type[OSError]
) -> None:
    fake.on_env_step(lambda _: Succeeded(CommandResult(exit_code, stderr=told)))
    sandbox = await sandbox_of(fake)
    for refused in (sandbox.read("file"), sandbox.write("file", b"")):
        with pytest.raises(expected) as caught:
            await refused
        assert (type(caught.value), "file" in str(caught.value)) == (expected, True)


async def test_a_signal_is_told_as_a_shell_does(fake: FakeClient) -> None:
    fake.on_env_step(lambda _: Succeeded(CommandResult(-11, signal=11)))
    assert (await (await sandbox_of(fake)).run(["crash"])).exit_code == 139


async def test_a_part_whose_reader_was_killed_is_no_content(fake: FakeClient) -> None:
    fake.on_env_step(lambda _: Succeeded(CommandResult(-9, b"half", signal=9)))
    with pytest.raises(OSError, match="a signal ended its program"):
        await (await sandbox_of(fake)).read("file")


async def test_the_settings_are_what_the_sandbox_is_made_with(fake: FakeClient) -> None:
    build = ImageBuild(b"context", timeout_s=60.0)
    settings = BorrowedSandboxSettings(
        build=build, memory_mib=512, memory="guaranteed", disk_mib=64, working_directory="/srv", user="agent"
    )
    await (await sandbox_of(fake, settings)).make()
    (made,) = fake.submitted
    assert isinstance(made.action, EnvReset)
    assert (made.action.build, made.action.disk_mib, made.action.memory) == (build, 64, "guaranteed")
    defaults, demand = made.action.defaults, made.options["demand"]
    assert defaults is not None
    assert (defaults.working_directory, defaults.user) == ("/srv", "agent")
    assert demand is not None
    assert [(each.name, each.min_units) for each in demand.resources if each.name == "memory"] == [("memory", 512)]


async def test_the_user_is_asked_for_once(fake: FakeClient) -> None:
    fake.on_env_step(lambda _: Succeeded(CommandResult(0, b"1000\nsandbox\n")))
    sandbox = await sandbox_of(fake)
    assert await sandbox.own_user() == await sandbox.own_user() == ("1000", "sandbox")
    assert len(fake.submitted) == 2


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
    assert trace.figures == {
        "part": 0.5,
        "callsheet_cut_replies": 0.0,
        "callsheet_excluded": 0.0,
        "callsheet_failed": 0.0,
    }


def test_a_failed_episode_is_a_sample_and_counted() -> None:
    trace = ToldTrace()
    failure = EpisodeFailure(FailureKind.ENV, "set_up_failed")
    assert note_episode(trace, record_of(None, failure), FailureRule()).reward == 0.0
    assert note_end(trace, "t") == (TrajectoryEnd.ABANDONED, "ENV/set_up_failed")
    assert trace.figures == {"callsheet_cut_replies": 0.0, "callsheet_excluded": 0.0, "callsheet_failed": 1.0}


def test_what_is_no_sample_is_counted_and_closed_as_lost() -> None:
    trace = ToldTrace()
    failure = EpisodeFailure(FailureKind.INFRA, "state_lost")
    assert note_episode(trace, record_of(None, failure), FailureRule()).is_excluded
    trace.ok, trace.last_error = False, ToldError("SandboxError", "INFRA state_lost")
    assert note_end(trace, "t") == (TrajectoryEnd.LOST, "SandboxError: INFRA state_lost")
    assert trace.figures == {"callsheet_cut_replies": 0.0, "callsheet_excluded": 1.0, "callsheet_failed": 0.0}
    trace.last_error = ToldError("TaskError", "a mistake")
    assert note_end(trace, "t")[0] is TrajectoryEnd.ABANDONED
