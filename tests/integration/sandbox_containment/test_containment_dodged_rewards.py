"""What a policy whose solution is wrong leaves behind so that nobody scores it: its reward is 0 all the same."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Stopped
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import action_pb2, outcome_pb2

from tests.support.expected import expect
from tests.support.measurements import Measured
from tests.support.root_filesystems import make_root, require_overlays
from tests.support.sandbox_attempts import attempt_of, inline_file, reset, step, suite
from tests.support.sandboxes import ANSWER_SECONDS, open_sandbox, shell, until_sleepers_are

pytestmark = pytest.mark.anyio

TEST = inline_file("tests/check.py", b"import solution\nassert solution.answer() == 42\n")
WRONG = inline_file("solution.py", b"def answer():\n    return 0\n")
_RUN = "PYTHONPATH=. python3 tests/check.py"
# Without rights of the owner in what is made below.
_DEFAULT_RIGHTS = r"""python3 -I - <<'END'
import os, struct
entries = [(0x01, 0), (0x04, 0), (0x20, 0)]
rights = b"".join(struct.pack("<HHI", kind, allowed, 0xFFFFFFFF) for kind, allowed in entries)
try:
    os.setxattr(".", "system.posix_acl_default", struct.pack("<I", 2) + rights)
except OSError:
    pass  # Not every file system has such lists.
END"""
_LEASE = r"""cat > lease.py <<'END'
import fcntl, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open("solution.py", os.O_RDWR)
try:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
except OSError:
    pass
open("ready", "w").close()
signal.pause()
END
setsid python3 -I lease.py </dev/null >/dev/null 2>&1 &
while [ ! -e ready ]; do sleep 0.01; done"""
DODGES = {
    "a directory nobody may enter": "chmod 000 .",
    "a directory that may only be listed": "mkdir listed; touch listed/file; chmod 444 listed .",
    "no temporary files": "chmod 000 /tmp",
    "rights of new directories": _DEFAULT_RIGHTS,
    "a lease on a file": _LEASE,
}


async def _run(executor: SandboxExecutor, action: action_pb2.ActionSpec, sandbox_id: str = "") -> AttemptResult:
    with anyio.fail_after(ANSWER_SECONDS):
        return await executor.run(attempt_of(action, sandbox_id=sandbox_id, resources={"memory": 256}))


async def _began(executor: SandboxExecutor, image: str = "") -> str:
    action = reset(WRONG)
    action.env_reset.image = image
    return expect(Completed, await _run(executor, action)).succeeded.env_reset.sandbox_id


async def _step(executor: SandboxExecutor, sandbox_id: str, script: str) -> None:
    result = expect(Completed, await _run(executor, step(script), sandbox_id))
    assert result.succeeded.env_step.exit_code == 0, result.succeeded.env_step.stderr.inline


def _score(result: AttemptResult) -> float:
    assert isinstance(result, Completed), result
    return result.succeeded.reward.score


@pytest.mark.parametrize("name", DODGES)
async def test_a_wrong_solution_is_scored(executor: SandboxExecutor, measured: Measured, name: str) -> None:
    sandbox_id = await _began(executor)
    await _step(executor, sandbox_id, DODGES[name])
    fresh = _score(await _run(executor, suite(_RUN, TEST), sandbox_id))
    within = _score(await _run(executor, suite(_RUN, TEST, in_sandbox=True), sandbox_id))
    measured(f"after {name}: FRESH {fresh:g}, IN_SANDBOX {within:g}, honest 0")
    assert (fresh, within) == (0.0, 0.0)


@pytest.mark.parametrize("in_sandbox", [False, True], ids=["fresh", "in sandbox"])
async def test_a_report_in_an_encoding_of_its_own_is_the_policys_failure(
    executor: SandboxExecutor, *, in_sandbox: bool
) -> None:
    sandbox_id = await _began(executor)
    written = '<?xml version="1.0" encoding="utf-7"?><testsuite><testcase/></testsuite>'
    judge = suite(f"echo '{written}' > {{report}}; exit 1", in_sandbox=in_sandbox)
    result = expect(Broken, await _run(executor, judge, sandbox_id))
    assert (result.failed.kind, result.failed.reason) == (outcome_pb2.FAILURE_KIND_POLICY, "bad_report")


async def test_a_file_that_is_longer_than_any_disk_is_its_own_limit(executor: SandboxExecutor) -> None:
    sandbox_id = await _began(executor)
    await _step(executor, sandbox_id, "python3 -I -c \"import os; os.truncate('solution.py', 1 << 62)\"")
    result = await _run(executor, suite(_RUN, TEST), sandbox_id)
    # Not every file system has an end there.
    if isinstance(result, Broken):
        assert (result.failed.kind, result.failed.reason) == (
            outcome_pb2.FAILURE_KIND_RESOURCE_LIMIT,
            "copy_too_large",
        )


async def test_the_root_of_an_image_cannot_keep_a_copy_from_beginning(
    settings: SandboxSettings, tmp_path: Path
) -> None:
    if settings.isolation is not Isolation.BUBBLEWRAP:
        pytest.skip("the images of an engine are read-only")
    require_overlays()
    os.chmod(tmp_path, 0o755)
    make_root(tmp_path / "tiny")
    own = replace(settings, manager_id="images", provisioning=ProvisioningSettings(images=tmp_path))
    executor = build_sandbox_executor(own)
    try:
        for trick in ("chmod 000 /work /tmp /root /", "cd /; rm -rf /work /tmp; ln -s /etc /work; ln -s /etc /tmp"):
            sandbox_id = await _began(executor, "tiny")
            await _step(executor, sandbox_id, trick)
            assert _score(await _run(executor, suite("cat tests/check.py && exit 1", TEST), sandbox_id)) == 0.0
    finally:
        await executor.close()


async def test_what_is_killed_is_gone_before_a_reward_begins(settings: SandboxSettings) -> None:
    # Each takes a while to end, in which it could end a system call that it is in.
    many = (
        "import mmap, os, time\nfor _ in range(30):\n    if not os.fork(): break\nbytearray(4 << 20); time.sleep(1000)"
    )
    async with open_sandbox(replace(settings, manager_id="other")) as sandbox:
        for _ in range(3):
            await shell(sandbox, f"setsid python3 -I -c '{many}' >/dev/null 2>&1 & sleep 0.1")
            await sandbox.kill()
            assert psutil.Process(sandbox.agent_pid).children() == []


@pytest.mark.parametrize("background", [action_pb2.REWARD_BACKGROUND_KILL, action_pb2.REWARD_BACKGROUND_STOP])
async def test_a_reward_without_the_server_it_needs_says_why(
    executor: SandboxExecutor, background: action_pb2.RewardBackground.ValueType
) -> None:
    sandbox_id = await _began(executor)
    judge = suite("exec sleep 1000", in_sandbox=True)
    judge.reward.test_suite.background = background
    for server, hints in (("true", False), ("tail -f /dev/null >/dev/null 2>&1 &", True)):
        await _step(executor, sandbox_id, server)
        attempt = attempt_of(judge, sandbox_id=sandbox_id)
        results: list[AttemptResult] = []
        with anyio.fail_after(ANSWER_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_append_result, executor, attempt, results)
                await until_sleepers_are([["sleep", "1000"]])
                attempt.stop_requested.set()
        assert isinstance(results[0], Stopped), results
        assert ("background=RUN" in results[0].hint) == hints


async def _append_result(executor: SandboxExecutor, attempt: Attempt, results: list[AttemptResult]) -> None:
    results.append(await executor.run(attempt))
