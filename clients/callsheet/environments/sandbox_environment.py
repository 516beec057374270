"""An environment whose replies are commands in one persistent sandbox: what coding and games have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from callsheet.client import (
    BackgroundProcesses,
    Command,
    CommandDefaults,
    CommandResult,
    Demand,
    EnvResetResult,
    SandboxFile,
    Timeouts,
    Trajectory,
    Where,
)
from callsheet.environments.bash_replies import (
    BASH_TOOLS,
    DEFAULT_TIMEOUT_S,
    LEAST_TIMEOUT_S,
    BadCall,
    SandboxCommand,
    Wanted,
    bash_wanted,
    report_of,
    report_text,
    submits,
    told,
)
from callsheet.environments.environment import Beginning, EpisodeScore, Observation
from callsheet.gateway.chat import Message, Tool

PATIENCE_S: Final = 900.0
"""How long an action may wait in the queue, unless told otherwise."""
SET_UP_S: Final = 120.0
"""How long a set-up, or a reward, may run."""
_SAID_LINES: Final = 10
_SAID_LETTERS: Final = 300


@dataclass(frozen=True, slots=True)
class SandboxWorld:
    """Parts of an episode in a sandbox.

    Attributes:
        name: Its subject, the same for episodes that start from the same state; actions have it as their `task`.
        family: The sort of world; labels of actions begin with it.
        messages: The policy's first messages; the output of the set-up is added unless it is empty.
        files: Files with which its sandbox starts.
        set_up: The command that runs there first.
        reward: The test run that scores it.
        reward_files: Pristine files for that run; best in a directory that the policy cannot know.
        reward_demand: Demand of that run if `SandboxDemands` gives none.
        where: The place of that run: a copy of the sandbox's files without the policy's processes, or beside them.
        tests: The number of tests; 0 counts those of the same run on the state after reset.
        background: The treatment of processes in the sandbox itself; None for the manager's default.
        image: The sandbox's root file system; empty takes the manager's.
        tools: Tools that the policy may call.
        wanted: Finds the commands that a reply wants run.
        is_over: Decides if a command's output ends the episode.
        defaults: Values for the sandbox's commands if they give none themselves.
        network: Places that the sandbox may reach, as "host:port"; see `EnvReset.network`.
    """

    name: str
    family: str
    messages: tuple[Message, ...]
    files: tuple[SandboxFile, ...]
    set_up: Command
    reward: Command
    reward_files: tuple[SandboxFile, ...]
    reward_demand: Demand | None = None
    where: Where = Where.FRESH
    tests: int = 0
    background: BackgroundProcesses | None = None
    image: str = ""
    tools: tuple[Tool, ...] = BASH_TOOLS
    wanted: Callable[[Message], Wanted] = bash_wanted
    is_over: Callable[[str], bool] = lambda _: False
    defaults: CommandDefaults | None = None
    network: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxDemands:
    """Demands of the actions; None takes each kind's default.

    Attributes:
        reset: The demand of env_reset.
        step: The demand of env_step and of the reward.
    """

    reset: Demand | None = None
    step: Demand | None = None


_DEFAULT_DEMANDS: Final = SandboxDemands()


def program_label(command: Command) -> str:
    """Returns a label for prediction: the program's name."""
    words = command.program.split() if isinstance(command.program, str) else command.program
    return words[0].rpartition("/")[2][:64] if words else ""


def last_lines(run: CommandResult | None) -> str:
    """Returns the last lines that a run printed: of its standard output, and then of its standard error."""
    streams = (run.stdout, run.stderr) if run is not None else ()
    found = [each.decode(errors="replace").strip().splitlines()[-_SAID_LINES:] for each in streams]
    return "\n".join(line[:_SAID_LETTERS] for lines in found for line in lines)


class SandboxEnvironment:
    """Runs what replies want in the sandbox. A reply that wants nothing ends the episode.

    A command that fails is told to the policy, with its exit code or the failure. An INFRA failure ends the episode.

    Args:
        world: What the episode consists of.
        demands: What actions need.
        label_of: The label of a command.
        patience_s: How long an action may wait in the queue.
    """

    def __init__(
        self,
        world: SandboxWorld,
        demands: SandboxDemands = _DEFAULT_DEMANDS,
        *,
        label_of: Callable[[Command], str] = program_label,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._world = world
        self._demands = demands
        self._label_of = label_of
        self._patience_s = patience_s

    @property
    def time_limits(self) -> dict[str, float]:
        """How long its parts may take, in seconds, by name."""
        limits = {"reset": SET_UP_S, "command": DEFAULT_TIMEOUT_S, "reward": SET_UP_S}
        return {"wait of an action in the queue": self._patience_s} | limits

    def let_reach(self, *places: str) -> None:
        """Lets its sandbox reach further places; see `EnvReset.network`."""
        self._world = replace(self._world, network=(*self._world.network, *places))

    async def reset(self, trajectory: Trajectory) -> Beginning:
        """Makes the sandbox with its files, and runs the set-up."""
        world = self._world
        outcome = await trajectory.env_reset(
            files=world.files,
            set_up=world.set_up,
            image=world.image,
            defaults=world.defaults,
            network=world.network,
            demand=self._demands.reset,
            label=f"{world.family}-reset",
            task=world.name,
            timeouts=self._timeouts(SET_UP_S),
        )
        shown = _set_up_output(outcome.unwrap())
        said: tuple[Message, ...] = ({"role": "user", "content": shown},) if shown else ()
        return Beginning((*world.messages, *said), world.tools)

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        """Runs what the reply wants, one after another."""
        wanted = self._world.wanted(reply)
        answers = [told(each.call_id, await self._run(trajectory, each)) for each in wanted]
        over = any(self._world.is_over(str(answer["content"])) for answer in answers)
        return Observation(tuple(answers), done=over or not wanted or submits(reply))

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        """Runs the tests that score it, on what the sandbox holds."""
        world = self._world
        outcome = await trajectory.reward_tests(
            world.reward,
            files=world.reward_files,
            where=world.where,
            background=world.background,
            tests=world.tests,
            demand=self._demands.step or world.reward_demand,
            label=f"{world.family}-suite",
            task=world.name,
            timeouts=self._timeouts(SET_UP_S),
        )
        result = outcome.unwrap()
        counts = {"tests": float(result.total), "tests_passed": float(result.passed)} if result.total else {}
        return EpisodeScore(result.score, counts, last_lines(result.command))

    async def _run(self, trajectory: Trajectory, wanted: SandboxCommand | BadCall) -> str:
        if isinstance(wanted, BadCall):
            return wanted.said
        outcome = await trajectory.env_step(
            wanted.command,
            demand=self._demands.step,
            label=self._label_of(wanted.command),
            task=self._world.name,
            timeouts=self._timeouts(wanted.timeout_s),
        )
        report = report_of(outcome)
        if report is None:
            outcome.unwrap()
            raise AssertionError("what has no report is no success")
        return report_text(report)

    def _timeouts(self, start_to_close_s: float) -> Timeouts:
        return Timeouts(
            schedule_to_start_s=self._patience_s,
            # What rounds to nothing would take the server's default.
            start_to_close_s=max(start_to_close_s, LEAST_TIMEOUT_S),
            schedule_to_close_s=self._patience_s + 4 * start_to_close_s,
        )


def _set_up_output(reset: EnvResetResult) -> str:
    return reset.set_up.stdout.decode(errors="replace") if reset.set_up is not None else ""
