"""The demo's episodes on their real inputs, with commands as plain processes: bugs are caught, fixed and rewarded.

Needs the package index the first time; inputs are kept where the demo keeps them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from callsheet.benchmarks.demo import scripted
from callsheet.benchmarks.demo.episodes import Episode, coding_episode, game_episode, make_episodes
from callsheet.benchmarks.demo.inputs import DemoInputs, prepare_inputs
from callsheet.benchmarks.demo.modes import CALLSHEET, RESERVED
from callsheet.benchmarks.demo.workload import EpisodeResult, EpisodeRunner, run_mode
from callsheet.client import (
    Command,
    CommandResult,
    Demand,
    EnvReset,
    EnvStep,
    Failed,
    FailureKind,
    Generate,
    Hold,
    Reason,
    RewardTests,
    TrajectoryEnd,
)
from callsheet.environments.bash_replies import CommandReport
from callsheet.environments.coding.mutation import BUGS, Bug, prepare_task
from callsheet.environments.coding.packages import (
    PACKAGES,
    SourceRelease,
    SourceReleaseError,
    default_cache_directory,
    fetch_releases,
    missing_packages,
)
from callsheet.environments.games.frozen_lake import PLAY_PROGRAM

from tests.support.expected import present
from tests.support.local_episodes import LocalEpisode


@pytest.fixture(scope="module")
def inputs() -> DemoInputs:
    try:
        return prepare_inputs(default_cache_directory(os.environ), lambda _: None)
    except SourceReleaseError as error:
        pytest.skip(f"the demo's inputs: {error}")


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Until when agents waited with their thoughts, on a clock that stands at 1000; nothing waits here."""
    waited: list[float] = []

    async def sleep_until(deadline: float) -> None:
        waited.append(deadline)

    monkeypatch.setattr(scripted, "anyio", SimpleNamespace(current_time=lambda: 1000.0, sleep_until=sleep_until))
    return waited


@pytest.fixture
def local(inputs: DemoInputs, tmp_path: Path) -> Iterator[LocalEpisode]:
    """An episode's directory; the game that lives there is ended with the test."""
    yield LocalEpisode(tmp_path, inputs.staged)
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] == str(tmp_path):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def release_of(inputs: DemoInputs, name: str) -> SourceRelease:
    return next(release for release in inputs.releases if release.package.name == name)


def edits_of(episode: Episode, fixed_line: str) -> list[str]:
    """The lines that an agent writes if its test passes once the line is fixed; "slip" for each of its slips."""
    policy = episode.policy()
    turn = next(policy)
    edits: list[str] = []
    while True:
        if turn.label in {"edit", "slip"}:
            edits.append(turn.command.program[-1] if turn.label == "edit" else "slip")
        passes = turn.label == "test" and edits[-1:] == [fixed_line]
        try:
            turn = policy.send(CommandReport(0 if passes else 1, ""))
        except StopIteration:
            return edits


def coding(inputs: DemoInputs, bug: Bug, *, gives_up: bool = False) -> Episode:
    """An episode whose agent fixes the bug at once, or gives up after a first, wrong edit."""
    task = prepare_task(bug, release_of(inputs, bug.package))
    for seed in range(1000):
        episode = coding_episode("episode", task, seed)
        edits = edits_of(episode, task.fixed_line)
        if gives_up == (edits[-1] != task.fixed_line) and len(edits) == 1:
            return episode
    raise AssertionError("no such agent in 1000 seeds")


async def roll_out(local: LocalEpisode, episode: Episode) -> EpisodeResult:
    return await EpisodeRunner(await local.client.open_job("job"), episode, CALLSHEET, lambda _: None).run()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "package",
    [pytest.param(each.name, marks=() if each.name == "toolz" else pytest.mark.nightly) for each in PACKAGES],
)
async def test_a_bug_is_caught_fixed_and_rewarded(inputs: DemoInputs, local: LocalEpisode, package: str) -> None:
    bug = next(bug for bug in BUGS if bug.package == package)
    rollout = await roll_out(local, coding(inputs, bug))
    assert rollout.bug_confirmed
    assert rollout.score == 1.0
    assert rollout.is_solved
    release = release_of(inputs, package)
    assert (local.directory / "package" / release.package.root / bug.path).read_text() == release.read(bug.path)


@pytest.mark.anyio
async def test_who_gives_up_is_scored_below_one(inputs: DemoInputs, local: LocalEpisode) -> None:
    rollout = await roll_out(local, coding(inputs, BUGS[0], gives_up=True))
    assert rollout.bug_confirmed
    assert rollout.score is not None
    assert 0.5 < rollout.score < 1.0
    assert not rollout.is_solved


def test_every_known_bug_has_its_line_and_a_wrong_fix(inputs: DemoInputs) -> None:
    for bug in BUGS:
        release = release_of(inputs, bug.package)
        task = prepare_task(bug, release)
        before, after = release.read(bug.path).split("\n"), task.source.split("\n")
        assert [number for number, line in enumerate(before, 1) if line != after[number - 1]] == [task.line]
        assert task.fixed_line == before[task.line - 1]
        assert task.fixed_line not in task.wrong_lines
        assert task.wrong_lines


@pytest.mark.anyio
async def test_the_game_lives_on_between_actions_and_says_who_won(local: LocalEpisode) -> None:
    rollout = await roll_out(local, game_episode("game", 4))
    assert rollout.lost == ""
    assert rollout.turns >= 3
    assert rollout.score in {0.0, 1.0}
    steps = [submission.action for submission in local.client.submitted if isinstance(submission.action, EnvStep)]
    assert {step.command.program[3] for step in steps} == {PLAY_PROGRAM}


@pytest.mark.anyio
@pytest.mark.parametrize("seed", [4, 5])
async def test_a_thought_takes_as_long_as_a_large_model_for_its_tokens(
    local: LocalEpisode, waits: list[float], seed: int
) -> None:
    await roll_out(local, game_episode("game", seed))
    actions = [submission.action for submission in local.client.submitted]
    tokens = [action.sampling.max_new_tokens for action in actions if isinstance(action, Generate)]
    assert len(set(tokens)) > 1
    assert waits == [pytest.approx(1000 + count / 100) for count in tokens]


@pytest.mark.anyio
async def test_a_word_that_is_no_move_changes_nothing(local: LocalEpisode) -> None:
    episode = game_episode("game", 1)
    job = await local.client.open_job("job")
    async with job.trajectory("t") as trajectory:
        await trajectory.env_reset(files=episode.world.files, set_up=episode.world.set_up)
        answers = []
        for word in ("look", "jump", "look", "down"):
            outcome = await trajectory.env_step(Command.argv("python3", "-I", "-S", PLAY_PROGRAM, word))
            answers.append(outcome.unwrap())
    assert [answer.exit_code for answer in answers] == [0, 2, 0, 0]
    assert answers[1].stdout.startswith(b"invalid: 'jump'")
    assert answers[0].stdout == answers[2].stdout
    assert b"steps 1" in answers[3].stdout


@pytest.mark.anyio
async def test_a_lost_sandbox_ends_the_episode_and_is_told(inputs: DemoInputs, local: LocalEpisode) -> None:
    def lose(_: EnvStep) -> Failed[CommandResult]:
        return Failed(FailureKind.INFRA, Reason.STATE_LOST, "the sandbox is gone")

    local.client.on_env_step(lose)
    rollout = await roll_out(local, coding(inputs, BUGS[0]))
    assert rollout.lost == "infra: state_lost: the sandbox is gone"
    assert rollout.score is None
    assert local.client.closed_trajectories == {("job", "episode"): TrajectoryEnd.ABANDONED}


@pytest.mark.anyio
async def test_both_modes_submit_the_same_work_with_other_demands(inputs: DemoInputs, local: LocalEpisode) -> None:
    episodes = [coding(inputs, BUGS[0])]
    said: list[str] = []
    runs = [await run_mode(local.client, mode.name, episodes, mode, said.append) for mode in (CALLSHEET, RESERVED)]
    assert [run.rollouts[0].score for run in runs] == [1.0, 1.0]
    assert len(said) == 2
    submitted = local.client.submitted
    ours = [submission for submission in submitted if submission.job_id == CALLSHEET.name]
    theirs = [submission for submission in submitted if submission.job_id == RESERVED.name]
    assert [type(submission.action) for submission in ours] == [type(submission.action) for submission in theirs]
    # Prompts hold what commands printed, and that can differ in the times that pytest tells.
    sandboxed = (EnvReset, EnvStep, RewardTests)
    in_ours = [submission.action for submission in ours if isinstance(submission.action, sandboxed)]
    assert in_ours == [submission.action for submission in theirs if isinstance(submission.action, sandboxed)]
    (reset,) = (submission for submission in theirs if isinstance(submission.action, EnvReset))
    held = present(reset.options["demand"])
    assert {(entry.name, entry.hold) for entry in held.resources} == {
        ("memory", Hold.TRAJECTORY),
        ("cpu", Hold.TRAJECTORY),
    }
    for submission in theirs:
        if isinstance(submission.action, EnvStep | RewardTests):
            assert submission.options["demand"] == Demand()


def test_the_seed_decides_the_workload(inputs: DemoInputs) -> None:
    episodes = make_episodes(5, 5, inputs.releases)
    again = make_episodes(5, 5, inputs.releases)
    assert [(episode.name, episode.seed, episode.world.files) for episode in episodes] == [
        (episode.name, episode.seed, episode.world.files) for episode in again
    ]
    assert [episode.task for episode in make_episodes(5, 6, inputs.releases)] != [episode.task for episode in episodes]
    families = [episode.family for episode in episodes]
    assert families.count("coding") == 3
    assert families.count("game") == 2
    assert len({episode.name for episode in episodes}) == 5


def test_a_damaged_archive_is_fetched_again(inputs: DemoInputs, tmp_path: Path) -> None:
    for release in inputs.releases:
        (tmp_path / release.package.archive_name).write_bytes(release.archive)
    assert missing_packages(PACKAGES, tmp_path) == []
    (tmp_path / PACKAGES[0].archive_name).write_bytes(b"damaged")
    assert missing_packages(PACKAGES, tmp_path) == [PACKAGES[0]]
    fetch_releases(PACKAGES, tmp_path)
    assert missing_packages(PACKAGES, tmp_path) == []


def test_without_the_package_index_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SourceReleaseError, match=r"inflection 0\.5\.1.*the first run needs the package index"):
        fetch_releases(PACKAGES[:1], tmp_path)


def test_the_cache_follows_the_environment(tmp_path: Path) -> None:
    assert default_cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "callsheet"
    assert default_cache_directory({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "callsheet"
    assert default_cache_directory({}) == Path.home() / ".cache" / "callsheet"
