"""A program under test that wants its tests to count as passed: signals to its runner, and reports of its own.

Its answers are wrong, so that the honest score is below 1. The scores are printed at the end of the run.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import anyio
import pytest
from callsheet.managers.executor import Broken, Completed
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings, StageDirectory
from callsheet.v1 import action_pb2, outcome_pb2

from tests.support.executor_runs import completed
from tests.support.expected import expect
from tests.support.measurements import Measured
from tests.support.real_sandboxes import processes
from tests.support.sandbox_attempts import Judge, attempt_of, inline_file, reset, sh, step
from tests.support.sandboxes import Variant, settings_for, variants
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

PYTEST = StageDirectory(Path(pytest.__file__).parents[1])
# Each asks the program as a process of its own, as a careful test does.
TESTS = b"""
import subprocess, sys
import pytest

@pytest.mark.parametrize("number", range(4))
def test_doubles(number):
    command = [sys.executable, "-IS", "solution.py", str(number)]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.stdout.strip() == str(2 * number)
"""
RIGHT = "import sys; print(2 * int(sys.argv[1]))"
# Right for the first two, wrong for the others.
WRONG = "import os, signal, sys, time\nnumber = int(sys.argv[1])\nif number < 2: print(2 * number); sys.exit()\n"
FILES = (inline_file("judge-1f3a/test_it.py", TESTS), inline_file("judge-1f3a/pytest.ini", b"[pytest]\n"))
# Other packages' plugins are half of pytest's start.
PYTEST_QUIETLY = "-m pytest -q --disable-plugin-autoload -p no:cacheprovider --junitxml={report}"
RUN = f"python3 -P -B {PYTEST_QUIETLY} -c judge-1f3a/pytest.ini judge-1f3a"
SHAPES: Mapping[str, action_pb2.Command] = {
    "argv": action_pb2.Command(argv=action_pb2.Argv(arguments=RUN.split())),
    "shell": sh(f"{RUN}; exit $?"),
    "shell that hides the code": sh(f"{RUN}; exit 0"),
    "shell that makes it 1": sh(f"{RUN} || exit 1"),
    "timeout": sh(f"timeout 50 {RUN}; exit $?"),
    "python": action_pb2.Command(
        python=f"import subprocess, sys; sys.exit(subprocess.run({RUN!r}.split()).returncode)"
    ),
}


def kill(number: int, when: str = "True") -> str:
    """Returns a program that signals its runner, as for a test that would fail."""
    return f"{WRONG}if {when}: os.kill(os.getppid(), {number}); time.sleep(20)\n"


REPORTED = "a report of its own, and SIGKILL"
ATTACKS: Mapping[str, str] = {
    **{signal.Signals(number).name: kill(number) for number in (2, 3, 6, 9, 15)},
    "SIGINT in the last test": kill(2, "number == 3"),
    "SIGINT twice": f"{WRONG}os.kill(os.getppid(), 2); os.kill(os.getppid(), 2); time.sleep(20)\n",
    REPORTED: f"""{WRONG}
words = open(f"/proc/{{os.getppid()}}/cmdline").read().split("\\0")
report = next(word for word in words if word.startswith("--junitxml=")).partition("=")[2]
open(report, "w").write("<testsuite tests='4'>" + "<testcase/>" * 4 + "</testsuite>")
os.kill(os.getppid(), 9)
time.sleep(20)
""",
}


# How the runner ends is told in each shape. The others differ in the end alone, and meet each shape in the night.
BY_DAY = {
    *((attack, "shell that hides the code") for attack in ATTACKS),
    *(("SIGINT", shape) for shape in SHAPES),
    *((REPORTED, shape) for shape in ("argv", "python", "in sandbox")),
    ("SIGINT", "in sandbox"),
}
EACH_IN_EACH_SHAPE = [
    pytest.param(attack, shape, id=f"{attack}, {shape}", marks=() if (attack, shape) in BY_DAY else pytest.mark.nightly)
    for attack in ATTACKS
    for shape in (*SHAPES, "in sandbox")
]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> SandboxSettings:
    found = expect(Variant, variants(Isolation.BUBBLEWRAP)[0])
    return settings_for(found, tmp_path_factory.mktemp("forged"), (PYTEST,))


@pytest.fixture(scope="module")
async def executor(settings: SandboxSettings) -> AsyncIterator[SandboxExecutor]:
    """One for all."""
    built = build_sandbox_executor(settings)
    yield built
    await built.close()


async def wrote(executor: SandboxExecutor, *files: action_pb2.SandboxFile, script: str = "true") -> str:
    """Returns the sandbox of a policy that wrote files."""
    sandbox_id = (await completed(executor, reset(set_up="echo given > given"))).env_reset.sandbox_id
    done = expect(Completed, await executor.run(attempt_of(step(script, *files), sandbox_id=sandbox_id)))
    assert done.succeeded.env_step.exit_code == 0, done
    return sandbox_id


async def told(executor: SandboxExecutor, judge: Judge, sandbox_id: str, number: int = 2) -> tuple[float, str]:
    """Returns score and reason of an attempt at a reward; what has no score counts as 0."""
    reward = attempt_of(judge.action(), sandbox_id=sandbox_id)
    reward.grant.attempt = number
    result = await executor.run(reward)
    if isinstance(result, Completed):
        return result.succeeded.reward.score, ""
    assert isinstance(result, Broken), result
    kind = outcome_pb2.FailureKind.Name(result.failed.kind).removeprefix("FAILURE_KIND_")
    return 0.0, f"{kind} {result.failed.reason}"


def solution(program: str) -> action_pb2.SandboxFile:
    return inline_file("solution.py", program.encode())


async def test_an_honest_program_has_its_score_in_each_shape(executor: SandboxExecutor) -> None:
    for program, score, shapes in ((RIGHT, 1.0, ("shell",)), (WRONG, 0.5, SHAPES)):
        sandbox_id = await wrote(executor, solution(program))
        for shape in shapes:
            assert await told(executor, Judge(SHAPES[shape], FILES), sandbox_id) == (score, "")
    assert await told(executor, Judge(sh(RUN), FILES, in_sandbox=True), sandbox_id) == (0.5, "")


@pytest.mark.parametrize(("attack", "shape"), EACH_IN_EACH_SHAPE)
async def test_a_signal_to_the_runner_gives_no_score(
    executor: SandboxExecutor, measured: Measured, attack: str, shape: str
) -> None:
    sandbox_id = await wrote(executor, solution(ATTACKS[attack]))
    judge = Judge(sh(RUN), FILES, in_sandbox=True, tests=4) if shape == "in sandbox" else Judge(SHAPES[shape], FILES)
    score, reason = await told(executor, judge, sandbox_id)
    measured(f"{score:g} {reason}, honest 0.5")
    assert (score, reason.partition(" ")[0]) == (0.0, "POLICY")


async def test_who_ends_its_runner_does_so_in_the_next_attempt_as_well(executor: SandboxExecutor) -> None:
    sandbox_id = await wrote(executor, solution(kill(9)))
    judge = Judge(SHAPES["shell"], FILES)
    assert await told(executor, judge, sandbox_id, 1) == (0.0, "INFRA runner_killed")
    assert await told(executor, judge, sandbox_id, 2) == (0.0, "POLICY no_report")


OUTSIDE = {
    "argv": action_pb2.Command(argv=action_pb2.Argv(arguments=["sleep", "{units}000.25"])),
    "shell": sh("echo {report}; sleep {units}000.25; exit $?"),
    "a program of a shell": sh("sleep {units}000.25 || exit 1"),
    "timeout": sh("timeout 5000 sleep {units}000.25; exit $?"),
    "python": action_pb2.Command(
        python="import subprocess, sys; sys.exit(subprocess.run(['sleep', '{units}000.25']).returncode)"
    ),
}


@pytest.mark.parametrize("in_sandbox", [False, True], ids=["fresh", "in sandbox"])
@pytest.mark.parametrize("shape", OUTSIDE)
async def test_a_runner_that_is_killed_from_outside_is_nobodys_fault(
    executor: SandboxExecutor, shape: str, *, in_sandbox: bool
) -> None:
    # In a copy it ends by itself.
    command = OUTSIDE[shape]
    if in_sandbox:
        command = sh("test -e /tmp/original || exit 1; " + OUTSIDE["shell"].shell)
    sandbox_id = await wrote(executor, script="touch /tmp/original")
    ends: list[tuple[float, str]] = []

    async def score() -> None:
        ends.append(await told(executor, Judge(command, FILES, in_sandbox=in_sandbox), sandbox_id, 1))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(score)
        await until(lambda: bool(processes("sleep", "1000.25")))
        processes("sleep", "1000.25")[0].kill()
    assert ends == [(0.0, "INFRA runner_killed")]


COUNTED: Mapping[str, tuple[Mapping[str, bytes], int, tuple[float, str]]] = {
    "fewer than at the reset": ({"t/a.py": b"def test_a(): pass"}, 0, (0.0, "POLICY tests_missing")),
    "fewer than declared": ({}, 3, (0.0, "POLICY tests_missing")),
    "as many as declared": ({}, 2, (1.0, "")),
    "more of its own that pass": (
        {"t/b.py": b"def test_b(): assert 0\n", "t/c.py": b"def test_c(): pass\ndef test_d(): pass\n"},
        0,
        (0.5, ""),
    ),
    "skips": ({"t/b.py": b"import pytest\ndef test_b(): pytest.skip()"}, 0, (0.0, "POLICY tests_missing")),
    "all skipped": (
        {f"t/{name}.py": b"import pytest\ndef test_it(): pytest.skip()" for name in "ab"},
        0,
        (0.0, "POLICY no_tests"),
    ),
    "its module ends the runner": ({"t/b.py": b"import os\nos._exit(0)"}, 0, (0.0, "POLICY no_report")),
    "its module breaks the collection": ({"t/b.py": b"import nothing_there"}, 0, (0.0, "")),
}


@pytest.mark.parametrize("name", COUNTED)
async def test_a_report_counts_with_as_many_tests_as_there_are(
    executor: SandboxExecutor, measured: Measured, name: str
) -> None:
    """Tests that the policy can change, as they are no files of the reward."""
    changed, declared, expected = COUNTED[name]
    tests = [inline_file(f"t/{each}.py", f"def test_{each}(): pass".encode()) for each in "ab"]
    sandbox_id = (await completed(executor, reset(*tests))).env_reset.sandbox_id
    removed = "rm t/b.py" if name.startswith("fewer than at") else "true"
    own = [inline_file(path, content) for path, content in changed.items()]
    await executor.run(attempt_of(step(removed, *own), sandbox_id=sandbox_id))
    run = f"python3 -B {PYTEST_QUIETLY} t/*.py"
    for in_sandbox in (False, True):
        found = await told(executor, Judge(sh(run), in_sandbox=in_sandbox, tests=declared), sandbox_id)
        measured(f"{name}, {'IN_SANDBOX' if in_sandbox else 'FRESH'}: {found}")
        assert found == expected


MISSING: Mapping[str, tuple[str, tuple[float, str]]] = {
    # Of the system, and so of whoever set the task.
    "a module": ("python3 -m no_such_runner --junitxml={report}", (0.0, "ENV runner_missing")),
    "a module, without a report": ("python3 -m no_such_runner", (0.0, "ENV runner_missing")),
    "a program": ("no_such_runner {report}", (0.0, "ENV runner_missing")),
    "a program, without a report": ("no_such_runner", (0.0, "ENV runner_missing")),
    "a program of timeout": ("timeout 9 no_such_runner; exit $?", (0.0, "ENV runner_missing")),
    "a program that may not be executed": ("/usr/lib", (0.0, "ENV runner_missing")),
    "a collection that crashes": (f"{RUN} --no-such-option", (0.0, "ENV no_report")),
    # Of the policy, which wrote nothing yet.
    "a program of its own": ("./program < given | grep -q 1 || ./program", (0.0, "")),
    "a module of its own": ("python3 -c 'import program'", (0.0, "")),
    "a module of its own, that writes the report": ("python3 -c 'import program' {report}", (0.0, "POLICY no_report")),
    "a module that tests import": (f"{RUN} importing", (0.0, "")),
    # Of the policy, which removed or broke it.
    "a runner that it removed": ("python3 -m runner", (0.0, "POLICY runner_missing")),
    "what it removed": ("sh given {report}", (0.0, "POLICY no_report")),
}


@pytest.mark.parametrize("in_sandbox", [False, True], ids=["fresh", "in sandbox"])
@pytest.mark.parametrize("name", MISSING)
async def test_a_runner_that_is_missing_is_the_fault_of_who_lacks_it(
    executor: SandboxExecutor, measured: Measured, name: str, *, in_sandbox: bool
) -> None:
    script, expected = MISSING[name]
    gives = "echo '<testsuite><testcase/></testsuite>' >$1"
    result = await completed(executor, reset(inline_file("given", gives.encode()), inline_file("runner.py", b"")))
    sandbox_id = result.env_reset.sandbox_id
    await executor.run(attempt_of(step("rm given runner.py; touch given"), sandbox_id=sandbox_id))
    importing = inline_file("importing/test_it.py", b"import program\n")
    found = await told(executor, Judge(sh(script), (*FILES, importing), in_sandbox=in_sandbox), sandbox_id)
    measured(f"{name}, {'IN_SANDBOX' if in_sandbox else 'FRESH'}: {found}")
    assert found == expected


@pytest.mark.parametrize("report", ["", "{report}"])
async def test_a_runner_that_is_said_to_be_missing_is_looked_for_without_the_files(
    executor: SandboxExecutor, report: str
) -> None:
    """A job's reward, whose files are the policy's work."""
    says = solution("import sys; print('/usr/bin/python3: No module named pytest', file=sys.stderr); sys.exit(1)")
    exits = solution("import sys; print('sh: 1: pytest: not found', file=sys.stderr); sys.exit(127)")
    kills, ended = solution("kill -9 $$"), "no_report" if report else "runner_ended"
    for file, script, expected in (
        (kills, f"bash solution.py {report}", f"POLICY {ended}"),
        (kills, f"echo {report}; kill -9 $$", f"ENV {ended}"),
        (says, f"python3 solution.py {report}", "POLICY runner_missing"),
        (exits, f"python3 solution.py {report}", "POLICY runner_missing"),
        (says, f"python3 -m no_such_runner {report}", "ENV runner_missing"),
        (says, f"no_such_runner {report}", "ENV runner_missing"),
    ):
        assert await told(executor, Judge(sh(script), (file,)), "", 2) == (0.0, expected)


SCRIPT = b"""
import subprocess, sys
passed = sum(
    subprocess.run([sys.executable, "-IS", "solution.py", str(number)], capture_output=True, text=True).stdout.strip()
    == str(2 * number)
    for number in range(4)
)
open(sys.argv[1], "w").write(str(passed / 4))
"""


@pytest.mark.parametrize("in_sandbox", [False, True], ids=["fresh", "in sandbox"])
async def test_a_script_that_was_signalled_has_no_score(
    executor: SandboxExecutor, measured: Measured, *, in_sandbox: bool
) -> None:
    judge = Judge(sh("unused"), (inline_file("judge-1f3a/judge.py", SCRIPT),), in_sandbox=in_sandbox).action()
    tests = judge.reward.test_suite
    script = action_pb2.ScriptScoreInput(where=tests.where, files=tests.files)
    attacks = {"nothing": WRONG, **ATTACKS}
    distinct = ("nothing", "SIGINT", "SIGKILL", REPORTED)
    for command, chosen in (
        ("exec python3 -P judge-1f3a/judge.py {score}", distinct if in_sandbox else attacks),
        ("python3 -P judge-1f3a/judge.py {score} || exit 1", distinct),
    ):
        script.command.CopyFrom(sh(command))
        for attack in chosen:
            action = action_pb2.ActionSpec(trajectory_id="trajectory", reward=action_pb2.RewardInput(script=script))
            sandbox_id = await wrote(executor, solution(attacks[attack].replace("--junitxml=", "/")))
            attempt = attempt_of(action, sandbox_id=sandbox_id)
            attempt.grant.attempt = 2
            result = await executor.run(attempt)
            if attack == "nothing" or attack.startswith("a report"):
                assert isinstance(result, Completed), result
                assert result.succeeded.reward.score == 0.5
                continue
            assert isinstance(result, Broken), result
            measured(f"script, {attack}, {'IN_SANDBOX' if in_sandbox else 'FRESH'}: {result.failed.reason}")
            assert result.failed.kind == outcome_pb2.FAILURE_KIND_POLICY
