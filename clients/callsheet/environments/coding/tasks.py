"""The coding task set: each known bug is a task, and its package's test suite the reward."""

from __future__ import annotations

import os
import random
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from callsheet.client import Command, CommandDefaults, Demand, Elastic, SandboxFile
from callsheet.environments import coding
from callsheet.environments.coding.mutation import BUGS, Bug, CodingTask, prepare_task
from callsheet.environments.coding.packages import PACKAGES, SourceRelease, default_cache_directory, fetch_releases
from callsheet.environments.environment import EpisodeTask
from callsheet.environments.sandbox_environment import SandboxEnvironment, SandboxWorld

# Source files change within one second and keep their size, which Python's cached byte code would not notice.
_PYTHON: Final = ("python3", "-B")
# The package's own options may need plugins that are not there.
_PYTEST_OPTIONS: Final = ("-q", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "ignore")
_SUITE_PROGRAM: Final = "run_suite.py"
# No policy can know it, and so nothing of a policy's lies beside the tests. It is the same for all episodes of a
# process, as a manager keeps what it has seen of a task's first state for the command.
_JUDGE: Final = f"judge-{secrets.token_hex(8)}"
# Of the time of a suite; each process starts pytest anew.
_PARALLEL: Final = 0.9
_FETCHING: Final = threading.Lock()
_INTRODUCTION: Final = """\
The test {test} of {root} fails. Find the bug and fix it.
The source is in {project}. Run a command with the tool bash, or write it in a ```bash block of your reply.
Each command begins in the sandbox's home. In the end the whole test suite is run with its own test files.
When you are done, call the tool submit, or reply without a command.
"""


@dataclass(frozen=True)
class CodingTasks:
    """Bugs in source releases of small packages, which pip fetches once and checks by hash.

    Sandboxes need Python with pytest: by `--stage`, or in an image.

    Attributes:
        packages: Names of packages, with commas between them; empty takes all.
        seed: Of the order of tasks.
        image: The sandbox's root file system; empty takes the manager's.
        cache: Where source releases are kept; empty takes the user's cache directory.

    Raises:
        ValueError: There is no such package.
    """

    packages: str = ""
    seed: int = 0
    image: str = ""
    cache: str = ""

    def __post_init__(self) -> None:
        known = {package.name for package in PACKAGES}
        unknown = set(self._names()) - known
        if unknown:
            raise ValueError(f"packages: {', '.join(sorted(unknown))!r} is none of {', '.join(sorted(known))}")

    def tasks(self) -> Sequence[EpisodeTask]:
        """Returns all bugs of the packages, in an order drawn by the seed."""
        bugs = [bug for bug in BUGS if bug.package in self._names()]
        drawn = random.Random(f"coding {self.seed}").sample(bugs, len(bugs))
        return [EpisodeTask(task_id_of(bug), {"bug": task_id_of(bug)}) for bug in drawn]

    def environment(self, task: EpisodeTask) -> SandboxEnvironment:
        """Returns the environment of a bug; the first one fetches the source releases.

        Raises:
            SourceReleaseError: A release cannot be fetched.
        """
        bug = next(bug for bug in BUGS if task_id_of(bug) == task.data["bug"])
        directory = Path(self.cache) if self.cache else default_cache_directory(os.environ) / "sources"
        prepared = prepare_task(bug, _releases(directory)[bug.package])
        return SandboxEnvironment(coding_world(prepared, image=self.image))

    def _names(self) -> tuple[str, ...]:
        return _listed(self.packages) or tuple(each.name for each in PACKAGES)


def _releases(directory: Path) -> Mapping[str, SourceRelease]:
    # Environments are made in threads, and only the first one is to fetch.
    with _FETCHING:
        return _fetched(directory)


@cache
def _fetched(directory: Path) -> Mapping[str, SourceRelease]:
    return {release.package.name: release for release in fetch_releases(PACKAGES, directory)}


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def task_id_of(bug: Bug) -> str:
    """Returns a name of a bug that no other has."""
    return f"{bug.package}/{bug.function}/{bug.seed}"


def coding_world(task: CodingTask, *, image: str = "", tools_files: Sequence[SandboxFile] = ()) -> SandboxWorld:
    """Returns the world of a bug.

    Args:
        task: The bug in its package.
        image: The sandbox's root file system; empty takes the manager's.
        tools_files: More files of the sandbox, for instance an editing tool.
    """
    package, bug, tests = task.release.package, task.bug, task.release.test_files()
    project = project_of(task)
    text = _INTRODUCTION.format(test=bug.failing_test, root=package.root, project=project)
    return SandboxWorld(
        name=f"{package.root}/{bug.function}/{bug.seed}",
        family="coding",
        messages=({"role": "user", "content": text},),
        files=(
            SandboxFile("package", task.release.archive, unpack=True),
            SandboxFile(f"{project}/{bug.path}", task.source.encode()),
            *tools_files,
        ),
        set_up=Command.argv(*_PYTHON, "-c", "import pytest"),
        reward=_run_suite(task, tests),
        reward_files=(
            SandboxFile(_JUDGE, task.release.test_archive(), unpack=True),
            SandboxFile(f"{_JUDGE}/{_SUITE_PROGRAM}", _suite_program()),
            SandboxFile(f"{_JUDGE}/pytest.ini", b"[pytest]\n"),
        ),
        reward_demand=Demand(cpu=Elastic(1, len(tests), amdahl_fraction=_PARALLEL) if len(tests) > 1 else 1),
        image=image,
        defaults=CommandDefaults(environment=_variables(task)),
    )


def project_of(task: CodingTask) -> str:
    """Returns the package's directory, relative to the sandbox's home."""
    return f"package/{task.release.package.root}"


def run_tests(task: CodingTask, *tests: str, options: tuple[str, ...] = ("--tb=short", "-x")) -> Command:
    """Returns the command that runs some tests of the package."""
    words = (*_PYTHON, "-m", "pytest", *_PYTEST_OPTIONS, *options, *tests)
    return Command.argv(*words, environment=_variables(task), working_directory=project_of(task))


def _run_suite(task: CodingTask, tests: Sequence[str]) -> Command:
    """Returns the command that runs test files in as many processes as its grant has cores.

    It begins in the judge's directory, with the package behind everything else that Python finds: what is planted
    there is no module of Python or of pytest. Directories in variables are those below it.
    """
    root = task.release.package.root
    package = f"../{project_of(task)}/{task.release.package.import_directory}"
    options = (*_PYTEST_OPTIONS, "--tb=no", "-c", "pytest.ini")
    files = (f"{root}/{test}" for test in tests)
    words = (*_PYTHON, _SUITE_PROGRAM, package, "{report}", "{units}", *files, "--", *options)
    return Command.argv(*words, environment=_variables(task), working_directory=_JUDGE)


def _suite_program() -> bytes:
    return resources.files(coding).joinpath("sandbox_files").joinpath(_SUITE_PROGRAM).read_bytes()


def _variables(task: CodingTask) -> Mapping[str, str]:
    return {"PYTHONPATH": task.release.package.import_directory, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
