"""The demo's episodes: what each trajectory starts from, who acts in it and how it is rewarded."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from callsheet.benchmarks import demo
from callsheet.benchmarks.demo.bugs import BUGS, CodingTask, prepare_task
from callsheet.benchmarks.demo.packages import SourceRelease
from callsheet.benchmarks.demo.policy import (
    EDIT_PROGRAM,
    PLAY_PROGRAM,
    CodingAssignment,
    Policy,
    coding_policy,
    game_policy,
)
from callsheet.client.actions import BackgroundProcesses
from callsheet.client.commands import Command, SandboxFile

GAME_REQUIREMENTS = ("gymnasium==1.2.1", "numpy>=1.26,<3")
"""What the game needs in the sandbox."""

_SERVER_PROGRAM = "game_server.py"
_CHECK_PROGRAM = "check_game.py"
_SUCCESS_RATE = "0.85"
# Source files change within one second and keep their size, which Python's cached byte code would not notice.
_PYTHON = ("python3", "-B")


@dataclass(frozen=True, slots=True)
class Episode:
    """One trajectory to be rolled out.

    Attributes:
        name: Unique in the workload.
        family: "coding" or "game".
        task: What it is about; the same for episodes that start from the same state.
        introduction: What the agent is told.
        files: What its sandbox starts with.
        set_up: What is run there first.
        policy: Starts its agent.
        reward: The test run that scores it.
        reward_files: Pristine files for that run.
        seed: Of the agent and of its tokens.
        background: What becomes of processes in the sandbox while the reward runs; None for the manager's default.
    """

    name: str
    family: str
    task: str
    introduction: str
    files: tuple[SandboxFile, ...]
    set_up: Command
    policy: Callable[[], Policy]
    reward: Command
    reward_files: tuple[SandboxFile, ...]
    seed: int
    background: BackgroundProcesses | None = None


def make_episodes(count: int, seed: int, releases: Sequence[SourceRelease]) -> tuple[Episode, ...]:
    """Draws the episodes of a workload: three of five fix a bug, the others play a game.

    Args:
        count: How many.
        seed: The same seed gives the same episodes.
        releases: The source releases of all packages that have bugs.
    """
    rng = random.Random(f"workload {seed}")
    by_name = {release.package.name: release for release in releases}
    bugs = rng.sample(BUGS, len(BUGS))
    episodes = []
    for index in range(count):
        episode_seed = rng.getrandbits(32)
        if index % 5 in {1, 3}:
            episodes.append(game_episode(f"game-{index:02}", episode_seed))
        else:
            bug = bugs[index % len(bugs)]
            task = prepare_task(bug, by_name[bug.package])
            episodes.append(coding_episode(f"{bug.package}-{index:02}", task, episode_seed))
    return tuple(episodes)


def coding_episode(name: str, task: CodingTask, seed: int) -> Episode:
    """An episode in which an agent fixes a bug in a real package; its reward is the package's own test suite."""
    package = task.release.package
    bug = task.bug
    project = f"package/{package.root}"
    assignment = CodingAssignment(
        project, bug.path, bug.function, task.line, task.fixed_line, task.wrong_lines, _pytest(task, bug.failing_test)
    )
    return Episode(
        name=name,
        family="coding",
        task=f"{package.root}/{bug.function}/{bug.seed}",
        introduction=f"The test {bug.failing_test} of {package.root} fails. Find the bug and fix it.\n",
        files=(
            SandboxFile("package", task.release.archive, unpack=True),
            SandboxFile(f"{project}/{bug.path}", task.source.encode()),
            SandboxFile(EDIT_PROGRAM, _program("replace_line.py")),
        ),
        set_up=Command.argv(*_PYTHON, "-c", "import pytest"),
        policy=lambda: coding_policy(assignment, random.Random(seed)),
        reward=_pytest(task, *package.test_paths, options=("--tb=no", "--junitxml={report}")),
        reward_files=(SandboxFile("package", task.release.test_archive(), unpack=True),),
        seed=seed,
    )


def _pytest(task: CodingTask, *tests: str, options: tuple[str, ...] = ("--tb=short", "-x")) -> Command:
    package = task.release.package
    # The package's own options may need plugins that are not there.
    arguments = ("-q", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "ignore", *options, *tests)
    environment: Mapping[str, str] = {
        "PYTHONPATH": package.import_directory,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    return Command.argv(
        *_PYTHON, "-m", "pytest", *arguments, environment=environment, working_directory=f"package/{package.root}"
    )


def game_episode(name: str, seed: int) -> Episode:
    """An episode in which an agent plays FrozenLake in a process that lives in its sandbox."""
    size = random.Random(seed).choice((4, 4, 5, 6))
    server_seed = seed % 10_000
    return Episode(
        name=name,
        family="game",
        task=f"frozen-lake/{size}/{server_seed}",
        introduction="You are A on a frozen lake. Reach G, keep out of the holes H. The ice is slippery.\n",
        files=(
            SandboxFile(_SERVER_PROGRAM, _program(_SERVER_PROGRAM)),
            SandboxFile(PLAY_PROGRAM, _program("play.py")),
        ),
        set_up=Command.argv(
            *(*_PYTHON, _SERVER_PROGRAM, str(server_seed), str(size), _SUCCESS_RATE),
            # A game needs no pool of threads for linear algebra, and the memory of one would count.
            environment={"OPENBLAS_NUM_THREADS": "1"},
        ),
        policy=lambda: game_policy(random.Random(seed)),
        reward=Command.argv("python3", "-I", "-S", _CHECK_PROGRAM),
        reward_files=(SandboxFile(_CHECK_PROGRAM, _program(_CHECK_PROGRAM)),),
        seed=seed,
        # The reward asks the game, which the set-up began.
        background=BackgroundProcesses.RUN,
    )


def _program(name: str) -> bytes:
    return resources.files(demo).joinpath("sandbox_files").joinpath(name).read_bytes()
