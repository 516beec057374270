"""Rewards in a fresh copy of a trajectory's sandbox: what its policy prepares must not change their score.

Each trick is the work of a policy whose solution is wrong, so that the honest score is 0. The scores are printed at the
end of the run.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.walls.landlock import landlock_version
from callsheet.v1 import action_pb2

from tests.support.executor_runs import completed
from tests.support.measurements import Measured
from tests.support.sandbox_attempts import attempt_of, inline_file, reset, sh, step, suite

pytestmark = pytest.mark.anyio

APART = Path(__file__).parents[3] / "examples" / "apart.py"
TEST = b"import solution\nassert solution.answer() == 42\nprint('honest')\n"
WRONG = inline_file("solution.py", b"def answer():\n    return 0\n")
PRISTINE = inline_file("tests/check.py", TEST)


def _archived() -> action_pb2.SandboxFile:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("tests/check.py")
        member.size = len(TEST)
        archive.addfile(member, io.BytesIO(TEST))
    file = inline_file(".", packed.getvalue())
    file.unpack = True
    return file


ARCHIVED = _archived()
RUN = "PYTHONPATH=. python3 tests/check.py"
# Imported, as a test runner does: its bytecode would be taken from a cache.
IMPORTED = "PYTHONPATH=.:tests python3 -c 'import check'"
FORGED = "print('forged')"

TRICKS: Mapping[str, tuple[str, str]] = {
    "the test is rewritten": (f'mkdir -p tests; echo "{FORGED}" > tests/check.py; chmod 444 tests/check.py', RUN),
    "the test is a link to a file of the policy": (
        f'mkdir tests; echo "{FORGED}" > own.py; chmod 444 own.py; ln -s ../own.py tests/check.py',
        RUN,
    ),
    "the test is a hard link to the solution": ("mkdir tests; ln solution.py tests/check.py", RUN),
    "the tests are a link to another directory": (
        f'mkdir elsewhere; echo "{FORGED}" > elsewhere/check.py; ln -s elsewhere tests',
        RUN,
    ),
    "the tests are a link out of the directory": ("ln -s /tmp tests", RUN),
    "the tests are a file": (f'echo "{FORGED}" > tests', RUN),
    "the test is a directory that may not be entered": (
        "mkdir -p tests/check.py/__init__.py/deep; touch tests/check.py/file; chmod 000 tests/check.py",
        RUN,
    ),
    "the tests may not be written": (
        f'mkdir tests; echo "{FORGED}" > tests/check.py; chmod 444 tests/check.py; chmod 555 tests',
        RUN,
    ),
    "a pipe is in the place of the test": ("mkdir tests; mkfifo tests/check.py", RUN),
    "a cache has other bytecode for the test": (
        "mkdir tests; cat > tests/check.py; head -c -1 tests/check.py > honest; cp honest tests/check.py;"
        " python3 - <<'END'\n"
        "import importlib.util, marshal, os, struct\n"
        "code = marshal.dumps(compile(\"print('forged')\", 'check.py', 'exec'))\n"
        "os.makedirs('tests/__pycache__', exist_ok=True)\n"
        "for flags in (0b01,):\n"
        "    head = importlib.util.MAGIC_NUMBER + struct.pack('<I', flags) + bytes(8)\n"
        "    open(importlib.util.cache_from_source('tests/check.py'), 'wb').write(head + code)\n"
        "END\n",
        IMPORTED,
    ),
    "the cache is a link": (
        "mkdir -p tests elsewhere; ln -s ../elsewhere tests/__pycache__; python3 - <<'END'\n"
        "import importlib.util, marshal, os, struct\n"
        "code = marshal.dumps(compile(\"print('forged')\", 'check.py', 'exec'))\n"
        "head = importlib.util.MAGIC_NUMBER + struct.pack('<I', 1) + bytes(8)\n"
        "open(importlib.util.cache_from_source('tests/check.py'), 'wb').write(head + code)\n"
        "END\n",
        IMPORTED,
    ),
    "a process goes on rewriting the test": (
        f'mkdir tests; (while :; do echo "{FORGED}" > tests/check.py; cp tests/check.py solution.py; done) '
        "> /dev/null 2>&1 &",
        RUN,
    ),
    "Python is changed below HOME": (
        "d=$(python3 -c 'import site; print(site.getusersitepackages())'); mkdir -p $d;"
        " echo 'import os; os._exit(0)' > $d/usercustomize.py",
        RUN,
    ),
    "Python is changed by variables of a session": ("export PYTHONINSPECT=1 PYTHONSTARTUP=/work/solution.py", RUN),
}


async def began(executor: SandboxExecutor, *files: action_pb2.SandboxFile) -> str:
    return (await completed(executor, reset(*files), resources={"memory": 256})).env_reset.sandbox_id


async def scored(
    executor: SandboxExecutor,
    command: str,
    sandbox_id: str,
    *files: action_pb2.SandboxFile,
    in_sandbox: bool = False,
) -> float:
    result = await completed(executor, suite(command, *files, in_sandbox=in_sandbox), sandbox_id=sandbox_id)
    return result.reward.score


@pytest.mark.parametrize("trick", TRICKS)
async def test_the_score_is_the_honest_one(executor: SandboxExecutor, measured: Measured, trick: str) -> None:
    prepared, runner = TRICKS[trick]
    sandbox_id = await began(executor, WRONG)
    in_session = step(prepared)
    in_session.env_step.session = "policy"
    await completed(executor, in_session, sandbox_id=sandbox_id)
    score = await scored(executor, runner, sandbox_id, PRISTINE)
    measured(f"score {score:g}, the honest one is 0")
    assert score == 0.0
    # It is the solution that decides: one that is right counts, and nothing of the trick is in its way.
    right = inline_file("solution.py", b"def answer():\n    return 42\n")
    assert await scored(executor, runner, sandbox_id, PRISTINE, right) == 1.0


@pytest.mark.parametrize("trick", ["a cache has other bytecode for the test", "the cache is a link"])
@pytest.mark.parametrize("pristine", [PRISTINE, ARCHIVED], ids=["file", "archive"])
async def test_a_cache_stands_for_no_pristine_source_in_the_trajectorys_own_sandbox(
    executor: SandboxExecutor, measured: Measured, trick: str, pristine: action_pb2.SandboxFile
) -> None:
    prepared, runner = TRICKS[trick]
    sandbox_id = await began(executor, WRONG)
    await executor.run(attempt_of(step(prepared), sandbox_id=sandbox_id))
    score = await scored(executor, runner, sandbox_id, pristine, in_sandbox=True)
    measured(f"IN_SANDBOX: score {score:g}, the honest one is 0")
    assert score == 0.0


async def test_a_score_file_is_not_what_the_policy_left_there(executor: SandboxExecutor) -> None:
    for prepared in ("echo 1 > score", "mkdir -p score/deep; chmod 000 score", "echo 1 > own; ln -s own score"):
        sandbox_id = await began(executor, WRONG)
        await executor.run(attempt_of(step(prepared), sandbox_id=sandbox_id))
        scorer = action_pb2.ScriptScoreInput(command=sh("echo 0.25 > score"), score_file="score")
        reward = action_pb2.ActionSpec(trajectory_id="trajectory", reward=action_pb2.RewardInput(script=scorer))
        assert (await completed(executor, reward, sandbox_id=sandbox_id)).reward.score == 0.25


async def test_what_a_reward_does_is_nowhere_in_the_trajectory(executor: SandboxExecutor) -> None:
    sandbox_id = await began(executor, WRONG)
    secret = inline_file("hidden/test.py", b"secret\n")
    command = "test $(cat hidden/test.py) = secret && rm solution.py && touch made && ! grep -x sleep /proc/[0-9]*/comm"
    await executor.run(attempt_of(step("sleep 1000 > /dev/null 2>&1 & :"), sandbox_id=sandbox_id))
    assert await scored(executor, command, sandbox_id, secret) == 1.0
    assert await scored(executor, command, sandbox_id, secret) == 1.0
    result = await completed(executor, step("ls -A"), sandbox_id=sandbox_id)
    assert result.env_step.stdout.inline == b"solution.py\n"


# A program under test that writes the memory of whoever started it, its tests and a report.
MEDDLER = b"""
import os, sys
parent = os.getppid()

def change_memory():
    for line in open(f"/proc/{parent}/maps"):
        place, rights = line.split()[:2]
        begin, end = (int(word, 16) for word in place.split("-"))
        if rights.startswith("rw") and end - begin < 1 << 26:
            memory = open(f"/proc/{parent}/mem", "r+b", 0)
            memory.seek(begin)
            content = memory.read(end - begin)
            at = content.find(b"EXPECTED-42")
            while at >= 0:
                memory.seek(begin + at)
                memory.write(b"EXPECTED-00")
                at = content.find(b"EXPECTED-42", at + 1)

for way in (
    change_memory,
    lambda: open("../judge/check.py", "w").write("pass"),
    lambda: os.rename("../judge", "../gone"),
    lambda: open("/tmp/report", "w"),
):
    try:
        way()
    except OSError:
        continue
if sys.argv[1] == "scoped":
    for number in (2, 9, 15, 19):
        try:
            os.kill(parent, number)
            print("a signal", number)
        except PermissionError:
            pass
open("own", "w").write("may be written")
open("/dev/null", "w").write("too")
print("EXPECTED-00")
"""
# Of Landlock, Linux 6.12.
SIGNALS_ARE_SCOPED = 6
STARTS_IT = b"""
import os, sys
from apart import run_apart
expected = bytearray(b"EXPECTED-") + b"42"
done = run_apart([sys.executable, "meddler.py", sys.argv[1]], "program", capture_output=True)
names = sorted(os.listdir("program")), sorted(os.listdir("judge"))
print(done.stdout, done.stderr, *names, os.path.exists("/tmp/report"))
sys.exit(done.stdout.strip() != bytes(expected))
"""


@pytest.mark.parametrize("in_sandbox", [False, True], ids=["fresh", "in sandbox"])
async def test_a_program_that_is_started_apart_changes_nothing_of_its_test(
    executor: SandboxExecutor, measured: Measured, *, in_sandbox: bool
) -> None:
    if not landlock_version():
        pytest.skip("this kernel has no Landlock")
    sandbox_id = await began(executor, inline_file("program/meddler.py", MEDDLER))
    files = [inline_file("judge/check.py", STARTS_IT), inline_file("judge/apart.py", APART.read_bytes())]
    scoped = "scoped" if landlock_version() >= SIGNALS_ARE_SCOPED else "not"
    judge = suite(f"python3 -B judge/check.py {scoped}", *files, in_sandbox=in_sandbox)
    reward = (await completed(executor, judge, sandbox_id=sandbox_id)).reward
    measured(f"a program started apart: score {reward.score:g}, the honest one is 0")
    assert reward.score == 0.0
    said = reward.command.stdout.inline.decode()
    assert said == "b'EXPECTED-00\\n' b'' ['meddler.py', 'own'] ['apart.py', 'check.py'] False\n"
