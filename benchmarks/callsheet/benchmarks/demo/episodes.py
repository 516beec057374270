"""The demo's episodes: what each trajectory starts from, who acts in it and how it is rewarded."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources

from callsheet.benchmarks import demo
from callsheet.benchmarks.demo.policy import (
    EDIT_PROGRAM,
    CodingAssignment,
    Decision,
    Policy,
    coding_policy,
    game_policy,
)
from callsheet.client.words.commands import SandboxFile
from callsheet.environments import Message
from callsheet.environments.bash_replies import bash_call, call_message
from callsheet.environments.coding.mutation import BUGS, CodingTask, prepare_task
from callsheet.environments.coding.packages import SourceRelease
from callsheet.environments.coding.tasks import coding_world, project_of, run_tests
from callsheet.environments.games.frozen_lake import MOVE, frozen_lake_world
from callsheet.environments.sandbox_environment import SandboxWorld

_GAME_INTRODUCTION = "You are A on a frozen lake. Reach G, keep out of the holes H. The ice is slippery.\n"


@dataclass(frozen=True, slots=True)
class Episode:
    """One trajectory to be rolled out.

    Attributes:
        name: Unique in the workload.
        world: What its environment consists of.
        policy: Starts its agent.
        speak: Makes a decision a reply, with the id of its call.
        seed: Of the agent and of its tokens.
    """

    name: str
    world: SandboxWorld
    policy: Callable[[], Policy]
    speak: Callable[[Decision, str], Message]
    seed: int

    @property
    def family(self) -> str:
        """Either "coding" or "game"."""
        return self.world.family

    @property
    def task(self) -> str:
        """What it is about; the same for episodes that start from the same state."""
        return self.world.name


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
    package, bug = task.release.package, task.bug
    failing = run_tests(task, bug.failing_test)
    assignment = CodingAssignment(
        project_of(task), bug.path, bug.function, task.line, task.fixed_line, task.wrong_lines, failing
    )
    world = coding_world(task, tools_files=(SandboxFile(EDIT_PROGRAM, _program("replace_line.py")),))
    introduction = f"The test {bug.failing_test} of {package.root} fails. Find the bug and fix it.\n"
    return Episode(
        name=name,
        # The script's commands bring their own variables.
        world=replace(world, messages=_introduced(introduction), defaults=None),
        policy=lambda: coding_policy(assignment, random.Random(seed)),
        speak=lambda decision, call_id: bash_call(decision.command, decision.start_to_close_s, call_id),
        seed=seed,
    )


def game_episode(name: str, seed: int) -> Episode:
    """An episode in which an agent plays FrozenLake in a process that lives in its sandbox."""
    return Episode(
        name=name,
        world=replace(frozen_lake_world(seed), messages=_introduced(_GAME_INTRODUCTION)),
        policy=lambda: game_policy(random.Random(seed)),
        speak=lambda decision, call_id: call_message(MOVE, {"direction": decision.command.program[-1]}, call_id),
        seed=seed,
    )


def _introduced(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


def _program(name: str) -> bytes:
    return resources.files(demo).joinpath("sandbox_files").joinpath(name).read_bytes()
