"""The task set `harbor`: a task folder, or a folder of task folders."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from callsheet.client import GATEWAY_PLACE
from callsheet.environments.environment import EpisodeTask
from callsheet.environments.harbor.environment import HarborAgent, HarborEnvironment, read_again
from callsheet.environments.harbor.folders import find_tasks, named_variables, read_task
from callsheet.environments.harbor.task import HarborTask, HarborTaskError

NONE: Final = "none"
REFUSE: Final = "refuse"
SKIP: Final = "skip"
_PORTS: Final = (80, 443)
_MOST_SHOWN: Final = 20
_FETCHING: Final = re.compile(
    rb"(?<![\w./-])(?:curl|wget|apt|apt-get|apk|dnf|uv|uvx|npm|npx|(?:pip3?|cargo|go) install|git clone)(?= )|https?://"
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HarborTasks:
    """Tasks in the formats of Harbor and of Terminal-Bench's first version.

    Attributes:
        path: A task folder, or a folder of task folders.
        network: Places that the sandboxes of tasks with the internet may reach, with commas between them, such as
            "*:443,*:80"; "none" runs these tasks without. Managers must allow the places.
        agent: Shell command of an agent that is run in each sandbox, in place of a policy. It reaches the gateway.
        unsupported: "refuse" or "skip" tasks that need what sandboxes do not have.
        background: "kill" what agents left running before the tests, but for tasks that say otherwise, or let it "run":
            for tests that ask servers of the agent. It can read the tests then, and write the reward.
        variables: Variables of this process that "${NAME}" of tasks may take, by name, with commas between them.

    Raises:
        ValueError: A task cannot be run, an option is wrong, or there is no task.
    """

    path: str
    network: str = ""
    agent: str = ""
    unsupported: str = REFUSE
    background: str = "kill"
    variables: str = ""

    def __post_init__(self) -> None:
        """Reads all tasks, so that what cannot be run is told before anything runs."""
        if self.unsupported not in {REFUSE, SKIP}:
            raise ValueError(f"unsupported: {self.unsupported!r} must be {REFUSE!r} or {SKIP!r}")
        if self.background not in {"kill", "run"}:
            raise ValueError(f"background: {self.background!r} must be 'kill' or 'run'")
        asking = [task.name for task in self._read() if not network_of(task, self.network) and wants_network(task)]
        if asking:
            more = f" and {len(asking) - _MOST_SHOWN} more" if len(asking) > _MOST_SHOWN else ""
            _logger.warning(
                "tests that fetch something run without a network, and mostly score 0: %s%s",
                ", ".join(asking[:_MOST_SHOWN]),
                more,
            )

    def tasks(self) -> Sequence[EpisodeTask]:
        """Returns the tasks that can be run, by name."""
        more = {"variables": self.variables} if self.variables else {}
        return [EpisodeTask(task.name, {"folder": str(task.folder), **more}) for task in self._read()]

    def environment(self, task: EpisodeTask) -> HarborEnvironment | HarborAgent:
        """Returns the environment of a task.

        Raises:
            HarborTaskError: Its folder has changed, and cannot be run any more.
        """
        found = read_again(task)
        found = replace(found, keeps_running=found.keeps_running or self.background == "run")
        environment = HarborEnvironment(found, network_of(found, self.network))
        if not self.agent:
            return environment
        environment.let_reach(GATEWAY_PLACE)
        return HarborAgent(environment, self.agent)

    def _read(self) -> list[HarborTask]:
        tasks, problems = [], []
        variables = named_variables(self.variables, os.environ)
        for folder in find_tasks(Path(self.path).resolve()):
            try:
                task = read_task(folder, variables)
                network_of(task, self.network)
                tasks.append(task)
            except HarborTaskError as error:
                problems.append(str(error))
        if problems and (self.unsupported == REFUSE or not tasks):
            more = f"\n(and {len(problems) - _MOST_SHOWN} more)" if len(problems) > _MOST_SHOWN else ""
            raise HarborTaskError("\n".join(problems[:_MOST_SHOWN]) + more)
        for problem in problems:
            _logger.warning("task left out: %s", problem)
        return tasks


def network_of(task: HarborTask, network: str) -> tuple[str, ...]:
    """Returns the places that a task's sandbox may reach.

    Args:
        task: The task.
        network: As `HarborTasks.network`.

    Raises:
        HarborTaskError: It has the internet, and nobody said what of it sandboxes may reach.
    """
    if not task.internet:
        return tuple(f"{host}:{port}" for host in task.allowed_hosts for port in _PORTS)
    if not network:
        raise HarborTaskError(
            f"task {task.name!r}: allow_internet: it may use the internet, which is the default of its format: say "
            "which places sandboxes may reach with network=HOST:PORT,... or run it without with network=none"
        )
    return () if network == NONE else _listed(network)


def wants_network(task: HarborTask) -> bool:
    """Returns whether the script of a task's tests names a program that fetches, or an address. Blocks."""
    return _FETCHING.search(task.test_script.read_bytes()) is not None


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
