"""Rewards in a trajectory's own sandbox, which something that the trajectory left tries to forge.

The judge fails: its honest score is 0. It waits before it says so, for as long as an attack takes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from callsheet.managers.executor import Broken, Completed
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import action_pb2, manager_service_pb2

from tests.support.executor_runs import completed
from tests.support.expected import expect
from tests.support.measurements import Measured
from tests.support.root_filesystems import make_root, require_overlays
from tests.support.sandbox_attempts import attempt_of, inline_file, reset, step
from tests.support.sandboxes import ANSWER_SECONDS, python

pytestmark = pytest.mark.anyio

STOP, KILL, RUN = (
    action_pb2.REWARD_BACKGROUND_STOP,
    action_pb2.REWARD_BACKGROUND_KILL,
    action_pb2.REWARD_BACKGROUND_RUN,
)
_DEFAULT = action_pb2.REWARD_BACKGROUND_UNSPECIFIED
# Its report is in its memory, and open, while it waits.
_JUDGE = """
import sys, time
file = open(sys.argv[1], "w")
report = bytearray(b'<testsuite><testcase name="a"><failure/></testcase></testsuite>')
print("judging", flush=True)
time.sleep(0.6)
file.write(report.decode())
file.close()
sys.exit(1)
"""
_PASSED = '<testsuite><testcase name="a"/></testsuite>'
_FIND = """
import glob, os, time
open("ready", "w").close()
def judges():
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
        except OSError:
            continue
        if any(b"report-" in word for word in words) and pid != os.getpid():
            yield pid, next(word.decode() for word in words if b"report-" in word)
"""
_MEMORY = f"""{_FIND}
while True:
    for pid, _ in judges():
        try:
            for line in open(f"/proc/{{pid}}/maps"):
                place, rights = line.split()[:2]
                begin, end = (int(word, 16) for word in place.split("-"))
                if not rights.startswith("rw") or end - begin > 1 << 26:
                    continue
                memory = open(f"/proc/{{pid}}/mem", "r+b", 0)
                memory.seek(begin)
                at = memory.read(end - begin).find(b"<failure/>")
                if at >= 0:
                    memory.seek(begin + at)
                    memory.write(b" " * 10)
        except OSError:
            pass
"""
_DESCRIPTORS = f"""{_FIND}
while True:
    for pid, _ in judges():
        for number in range(1, 8):
            try:
                with open(f"/proc/{{pid}}/fd/{{number}}", "w") as file:
                    file.write("{_PASSED.replace('"', "'")}<!--")
            except OSError:
                pass
"""
_REPORT = f"""{_FIND}
known = set()
while True:
    known |= {{path for _, path in judges()}}
    for path in known:
        try:
            with open(path + ".new", "w") as file:
                file.write("{_PASSED.replace('"', "'")}")
            os.rename(path + ".new", path)
        except OSError:
            pass
"""
# A timer continues it even where it was stopped by a signal.
_TIMER = f"""
import ctypes, signal, struct
library = ctypes.CDLL(None, use_errno=True)
event = struct.pack("QiiQ", 0, signal.SIGCONT, 0, 0) + bytes(40)
timer = ctypes.c_int()
if library.syscall(222, 1, event, ctypes.byref(timer)) == 0:
    library.syscall(223, timer.value, 0, struct.pack("4q", 0, 10_000_000, 0, 10_000_000), None)
{_REPORT}"""
_LEFT_BEHIND = {"memory": _MEMORY, "descriptors": _DESCRIPTORS, "report": _REPORT, "timer": _TIMER}
_PLANTED = {
    "usercustomize": (
        "d=$HOME/$(python3 -c 'import site; print(site.USER_SITE)' | sed \"s|^$HOME/||\"); mkdir -p $d; "
        "echo 'import os; os._exit(0)' > $d/usercustomize.py; echo 'import os; os._exit(0)' > $d/x.pth",
        ("python3", "-c", "import sys; sys.exit(1)"),
    ),
    "login shell": (
        "for f in .profile .bash_profile .bash_login .bashrc; do echo 'exit 0' > $HOME/$f; done",
        ("/bin/sh", "-lc", "exit 1"),
    ),
    "shell": ("echo 'exit 0' > $HOME/rc; export ENV=$HOME/rc BASH_ENV=$HOME/rc", ("/bin/bash", "-c", "exit 1")),
}


async def _make(executor: SandboxExecutor) -> str:
    return (await completed(executor, reset(), resources={"memory": 256})).env_reset.sandbox_id


async def _run(executor: SandboxExecutor, sandbox_id: str, script: str) -> str:
    with anyio.fail_after(ANSWER_SECONDS):
        result = await executor.run(attempt_of(step(script), sandbox_id=sandbox_id))
    assert isinstance(result, Completed), result
    assert result.succeeded.env_step.exit_code == 0, result.succeeded.env_step.stderr.inline
    return result.succeeded.env_step.stdout.inline.decode()


async def _session(executor: SandboxExecutor, sandbox_id: str, script: str) -> str:
    action = step(script)
    action.env_step.session = "main"
    return (await completed(executor, action, sandbox_id=sandbox_id)).env_step.stdout.inline.decode()


async def _score(
    executor: SandboxExecutor,
    sandbox_id: str,
    argv: tuple[str, ...],
    background: action_pb2.RewardBackground.ValueType = _DEFAULT,
    environment: dict[str, str] | None = None,
) -> tuple[float, str]:
    """Returns the score, and what the judge printed."""
    suite = action_pb2.TestSuiteInput(
        where=action_pb2.REWARD_PLACE_IN_SANDBOX,
        files=[inline_file("judge.py", _JUDGE.encode())],
        command=action_pb2.Command(argv=action_pb2.Argv(arguments=argv), environment=environment or {}),
        background=background,
    )
    action = action_pb2.ActionSpec(trajectory_id="trajectory", reward=action_pb2.RewardInput(test_suite=suite))
    with anyio.fail_after(ANSWER_SECONDS):
        result = await executor.run(attempt_of(action, sandbox_id=sandbox_id))
    assert isinstance(result, Completed), result.failed if isinstance(result, Broken) else result
    reward = result.succeeded.reward
    return reward.score, reward.command.stdout.inline.decode()


def _sandbox(executor: SandboxExecutor, sandbox_id: str) -> AgentSandbox:
    state = manager_service_pb2.SandboxState(job_id="job", trajectory_id="trajectory", sandbox_id=sandbox_id)
    return expect(AgentSandbox, executor.find_sandbox(state))


async def _leave(executor: SandboxExecutor, sandbox_id: str, code: str) -> None:
    """Has a step leave a process behind."""
    files = [inline_file("attack.py", code.encode())]
    script = (
        "setsid python3 -I attack.py </dev/null >/dev/null 2>&1 &\nwhile [ ! -e ready ]; do sleep 0.01; done; rm ready"
    )
    assert (await completed(executor, step(script, *files), sandbox_id=sandbox_id)).env_step.exit_code == 0


_REPORTING = ("python3", "judge.py", "{report}")


@pytest.mark.parametrize("name", _LEFT_BEHIND)
async def test_what_a_step_left_running_forges_no_score(
    executor: SandboxExecutor, measured: Measured, name: str
) -> None:
    sandbox_id = await _make(executor)
    await _leave(executor, sandbox_id, _LEFT_BEHIND[name])
    score, said = await _score(executor, sandbox_id, _REPORTING)
    measured(f"IN_SANDBOX beside an attack on its {name}: score {score}, honest 0.0")
    assert (score, said) == (0.0, "judging\n")


@pytest.mark.parametrize("name", ["memory", "descriptors"])
async def test_a_judge_is_closed_even_to_what_runs_beside_it(executor: SandboxExecutor, name: str) -> None:
    sandbox_id = await _make(executor)
    if not _sandbox(executor, sandbox_id).separates_commands:
        pytest.skip("this kernel has no Landlock")
    await _leave(executor, sandbox_id, _LEFT_BEHIND[name])
    assert await _score(executor, sandbox_id, _REPORTING, RUN) == (0.0, "judging\n")


@pytest.mark.parametrize("name", _PLANTED)
async def test_what_a_step_left_at_home_forges_no_score(
    executor: SandboxExecutor, measured: Measured, name: str
) -> None:
    sandbox_id = await _make(executor)
    plant, judge = _PLANTED[name]
    await _run(executor, sandbox_id, plant)
    await _session(executor, sandbox_id, plant)
    score, said = await _score(executor, sandbox_id, judge)
    measured(f"IN_SANDBOX after an attack by {name}: score {score}, honest 0.0")
    assert (score, said) == (0.0, "")


async def test_a_judge_begins_with_a_home_of_its_own_that_is_removed(executor: SandboxExecutor) -> None:
    sandbox_id = await _make(executor)
    ask = "import os; print(os.listdir(os.environ['HOME'])); open(os.environ['HOME'] + '/left', 'w').close()"
    names = "print(sorted(n for n in os.environ if n.startswith('PYTHON') or n == 'ENV'), os.environ.get('ENV'))"
    judge = ("python3", "-c", f"{ask}\n{names}")
    assert (await _score(executor, sandbox_id, judge))[1] == "[]\n['PYTHONNOUSERSITE'] None\n"
    assert await _run(executor, sandbox_id, "ls -A /tmp") == ""
    own = {"HOME": "/work", "ENV": "/work/own"}
    judge = ("python3", "-c", "import os; print(os.environ['HOME'], os.environ['ENV'])")
    assert (await _score(executor, sandbox_id, judge, environment=own))[1] == "/work /work/own\n"


_COUNTER = """
import os, time
n = 0
while True:
    n += 1
    with open("new", "w") as file:
        file.write(str(n))
    os.rename("new", "count")
    if n == 1:
        open("ready", "w").close()
    time.sleep(0.005)
"""
_COUNTS = "import time; a = open('count').read(); time.sleep(0.3); print(a != open('count').read())"


@pytest.mark.parametrize(
    ("background", "meanwhile", "afterwards"), [(STOP, False, True), (KILL, False, False), (RUN, True, True)]
)
async def test_what_is_left_is_stopped_or_killed_or_goes_on(
    executor: SandboxExecutor,
    background: action_pb2.RewardBackground.ValueType,
    *,
    meanwhile: bool,
    afterwards: bool,
) -> None:
    sandbox_id = await _make(executor)
    await _leave(executor, sandbox_id, _COUNTER)
    await _session(executor, sandbox_id, "own=kept")
    _, said = await _score(executor, sandbox_id, ("python3", "-c", _COUNTS), background)
    assert said == f"{meanwhile}\n"
    assert await _run(executor, sandbox_id, f'python3 -c "{_COUNTS}"') == f"{afterwards}\n"
    assert await _session(executor, sandbox_id, "echo $own") == ("kept\n" if background != KILL else "\n")


async def test_a_pause_of_a_judge_lets_nothing_else_go_on(executor: SandboxExecutor) -> None:
    sandbox_id = await _make(executor)
    await _leave(executor, sandbox_id, _COUNTER)
    sandbox = _sandbox(executor, sandbox_id)
    await sandbox.resume()
    await sandbox.hold()
    await sandbox.pause()
    await sandbox.resume()
    assert await python(sandbox, _COUNTS) == "False\n"
    await sandbox.let_go()
    assert await python(sandbox, _COUNTS) == "True\n"


# Imported late, it would be the first process: it answers for every command with exit code 0.
_LIAR = """
import os
def write(details, content, work): os._exit(0)
remove = send_file = clear = place_file = listen = write
os.execve = lambda *_: os._exit(0)
"""


_REPLACE = f"""
cat > liar <<'end'
{_LIAR}
end
cd /run/callsheet
for file in agent/*.py; do rm -f $file; cat /work/liar > $file; done 2>/dev/null
mv agent aside && mkdir agent
true
"""


async def test_the_root_of_an_image_forges_no_score_by_the_agent(
    settings: SandboxSettings, measured: Measured, tmp_path: Path
) -> None:
    if settings.isolation is not Isolation.BUBBLEWRAP:
        pytest.skip("the images of an engine are read-only")
    require_overlays()
    os.chmod(tmp_path, 0o755)
    make_root(tmp_path / "tiny")
    own = replace(settings, manager_id="images", provisioning=ProvisioningSettings(images=tmp_path))
    executor = build_sandbox_executor(own)
    try:
        action = reset()
        action.env_reset.image = "tiny"
        sandbox_id = (await completed(executor, action, resources={"memory": 256})).env_reset.sandbox_id
        # Nothing is uploaded before: whatever the agent needs for that it would have by then.
        await _run(executor, sandbox_id, _REPLACE)
        score, _ = await _score(executor, sandbox_id, ("/bin/sh", "-c", "cat judge.py >/dev/null && exit 1"))
        measured(f"IN_SANDBOX after an attack on the agent's files: score {score}, honest 0.0")
        assert score == 0.0
    finally:
        await executor.close()
