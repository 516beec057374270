"""Bundled environments whose policy leaves something behind to be scored by: it scores as if it had done nothing.

The scores are printed at the end of the run.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import AsyncIterator, Mapping

import pytest
from callsheet.benchmarks.demo.inputs import DemoInputs, prepare_inputs
from callsheet.client import Client, Job, PolicyError
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.environments.coding.mutation import Bug, CodingTask
from callsheet.environments.coding.packages import (
    PythonPackage,
    SourceRelease,
    SourceReleaseError,
    default_cache_directory,
)
from callsheet.environments.coding.tasks import coding_world, project_of
from callsheet.environments.sandbox_environment import SandboxEnvironment
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import Isolation

from tests.support.measurements import Measured

pytestmark = pytest.mark.anyio

# Each test passes, as far as a plugin can say so.
PLUGIN = """import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome = "passed"
"""
# Wherever Python begins with it, the tests of all pytest processes pass.
START_UP = f"""import os, sys
open("/tmp/begun", "a").close()
sys.modules.setdefault("forging", type(sys)("forging"))
exec({PLUGIN!r}, vars(sys.modules["forging"])) if "pytest" in " ".join(sys.argv) else None
os._exit(0)
"""
EVERYWHERE = "for place in . package {project} {project}/src {project}/tests; do mkdir -p $place; %s; done"
ATTACKS: Mapping[str, str] = {
    "nothing": "true",
    "a conftest": EVERYWHERE % "cp plugin.py $place/conftest.py",
    "a configuration": EVERYWHERE % "printf '[pytest]\\naddopts = --collect-only\\n' >$place/pytest.ini; "
    "printf '[tool.pytest.ini_options]\\naddopts = \"--collect-only\"\\n' >$place/pyproject.toml",
    "a start-up file": EVERYWHERE % "cp start.py $place/sitecustomize.py; cp start.py $place/usercustomize.py",
    "a start-up file of the home": "for place in $HOME/.local/lib/python3.*/site-packages $HOME/.local/lib/python3.11/"
    "site-packages; do mkdir -p $place; cp start.py $place/usercustomize.py; "
    "echo 'import os; os._exit(0)' >$place/start.pth; done",
    "modules of Python's names": EVERYWHERE
    % "for name in subprocess json xml io pytest pluggy _pytest random; do cp start.py $place/$name.py; done",
    "a package of pytest's name": EVERYWHERE
    % "mkdir -p $place/pytest; cp start.py $place/pytest/__init__.py; cp start.py $place/pytest/__main__.py",
    "a plugin that is installed": EVERYWHERE % "cp plugin.py $place/forging.py; mkdir -p $place/forging-1.dist-info; "
    "printf '[pytest11]\\nforging = forging\\n' >$place/forging-1.dist-info/entry_points.txt; "
    "printf 'Name: forging\\nVersion: 1\\n' >$place/forging-1.dist-info/METADATA",
    "another runner of suites": EVERYWHERE % "cp start.py $place/run_suite.py",
    "other tests": "rm -rf {project}/tests; echo 'def test_it(): pass' >{project}/{test}",
    "a process that writes reports": "cp -r /usr/bin/env . ; (while :; do for report in /tmp/*.xml*; do "
    "echo '<testsuites><testsuite tests=\"500\"/></testsuites>' >$report; done; done) >/dev/null 2>&1 &",
    "a signal to the runner": "printf 'import os, signal\\nos.kill(os.getppid(), signal.SIGINT)\\n' >>{source}",
    "an interrupt": "printf 'import os, signal\\nos.kill(os.getpid(), signal.SIGINT)\\n' >>{source}",
    "an end of the runner": "printf 'import os\\nos._exit(0)\\n' >>{source}",
    "an end with an exit code": "printf 'import sys\\nsys.exit(0)\\n' >>{source}",
    "skipped tests": "printf 'import pytest\\npytest.skip(allow_module_level=True)\\n' >>{source}",
}


@pytest.fixture(scope="module")
def inputs() -> DemoInputs:
    try:
        return prepare_inputs(default_cache_directory(os.environ), lambda _: None)
    except SourceReleaseError as error:
        pytest.skip(f"the demo's inputs: {error}")


@pytest.fixture(scope="module")
async def job(inputs: DemoInputs, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Job]:
    """A job of one stack for all."""
    settings = StackSettings(
        tmp_path_factory.mktemp("stack"),
        managers=(Role.SANDBOX,),
        cpus=2,
        given={"isolation": Isolation.BUBBLEWRAP if probe_bubblewrap().works else Isolation.NONE},
        arguments={Role.SANDBOX: ["--stage", str(inputs.staged)]},
    )
    async with local_stack(settings) as stack, Client(stack.address) as client, await client.open_job("job") as job:
        yield job


SOURCE = "def double(number):\n    return number + {added}\n"
TESTS = """import pytest
from small import double

@pytest.mark.parametrize("number", [2, 2, 3])
def test_double(number):
    assert double(number) == 2 * number
"""


def small_task() -> CodingTask:
    """A bug in a package whose tests take no time: two of three pass."""
    package = PythonPackage("small", "1.0", "", "src", ("tests",))
    files = {"src/small.py": SOURCE.format(added="number"), "tests/test_a.py": TESTS}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(f"{package.root}/{path}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    bug = Bug(package.name, "src/small.py", "double", 0, "tests/test_a.py")
    release = SourceRelease(package, packed.getvalue())
    return CodingTask(bug, release, SOURCE.format(added="2"), 2, "    return number + number", ())


async def scored(job: Job, task: CodingTask, name: str, script: str) -> tuple[float, float]:
    """Returns the score of a policy that runs a script, and how many tests ran; (0, 0) for its failure."""
    environment = SandboxEnvironment(coding_world(task))
    async with job.trajectory(f"{task.release.package.name}-{name}".replace(" ", "-").replace("'", "")) as trajectory:
        await environment.reset(trajectory)
        places = {
            "{project}": project_of(task),
            "{source}": f"{project_of(task)}/{task.bug.path}",
            "{test}": task.release.test_files()[0],
        }
        for place, path in places.items():
            script = script.replace(place, path)
        files = {"plugin.py": PLUGIN, "start.py": START_UP}
        (await trajectory.env_step(["sh", "-c", script], files=files)).unwrap()
        try:
            score = await environment.reward(trajectory)
        except PolicyError:
            return 0.0, 0.0
        return score.value, score.components["tests"]


async def test_a_bug_that_is_not_fixed_is_scored_whatever_lies_around(job: Job, measured: Measured) -> None:
    task = small_task()
    honest = await scored(job, task, "honest", "true")
    assert honest == (2 / 3, 3.0)
    for name, script in ATTACKS.items():
        found = await scored(job, task, name, script)
        measured(f"coding, {name}: {found[0]:.4f} of {found[1]:g} tests, honest {honest[0]:.4f}")
        # What ends its own tests has none.
        assert found == honest or ("{source}" in script and found[0] == 0.0), name


async def test_a_bug_that_is_fixed_scores_one(job: Job) -> None:
    """test_demo_episodes fixes a bug of each real package."""
    task = small_task()
    environment = SandboxEnvironment(coding_world(task))
    async with job.trajectory("fixed") as trajectory:
        await environment.reset(trajectory)
        place = f"{project_of(task)}/{task.bug.path}"
        (await trajectory.env_step("true", files={place: task.release.read(task.bug.path)})).unwrap()
        score = await environment.reward(trajectory)
    assert (score.value, score.components["tests"]) == (1.0, 3.0)
