"""Attacks as actions: each ends in an outcome of a kind that a trainer can use, while a neighbour works on.

How long the neighbour's `true` takes before and during each attack is printed at the end of the run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import anyio
import pytest
from callsheet.managers.executor import AttemptResult, Broken, Completed, Stopped
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.v1 import manager_service_pb2, outcome_pb2

from tests.support.executor_runs import completed, under_way
from tests.support.measurements import Measured
from tests.support.neighbours import make, neighbour, python_step, until_the_next_reset_works
from tests.support.sandbox_attempts import attempt_of, inline_file, step
from tests.support.sandboxes import tells, until_sleepers_are

pytestmark = [pytest.mark.anyio, pytest.mark.alone]


@dataclass(frozen=True)
class Attack:
    """Code that means harm, run by Python, and how its action must end.

    Attributes:
        code: What it runs.
        limit: The failure that it ends with, where a group tells that this limit was met.
        succeeds: Whether it is to end with exit code 0 otherwise; its own checks have failed to harm then.
    """

    code: str
    limit: str | None = None
    succeeds: bool = True


ATTACKS = {
    "fork bomb": Attack("import os, time\nwhile True: os.fork() or time.sleep(20)", limit="pids", succeeds=False),
    "memory bomb": Attack("x = []\nwhile True: x.append(bytes(8 << 20))", limit="out_of_memory", succeeds=False),
    "disk filler": Attack("f = open('fill', 'wb', 0)\nwhile True: f.write(bytes(1 << 20))", succeeds=False),
    "inode filler": Attack("n = 0\nwhile True: open(f'f{n}', 'x').close(); n += 1", succeeds=False),
    "output flood": Attack("import os\nfor _ in range(3000): os.write(1, bytes(1 << 16))"),
    "network": Attack("import socket\nsocket.create_connection(('1.1.1.1', 53), 2)", succeeds=False),
    "name look-up": Attack("import socket\nsocket.getaddrinfo('example.com', 80)", succeeds=False),
    "cloud metadata": Attack(
        "import urllib.request as r\nr.urlopen('http://169.254.169.254/', timeout=2)", succeeds=False
    ),
    "reading /proc": Attack("""
import os
assert len([name for name in os.listdir('/proc') if name.isdigit()]) == 2
for path in ('/proc/kcore', '/proc/1/environ', '/proc/1/root/etc/shadow', '/proc/kallsyms'):
    try:
        text = open(path, 'rb').read(1000)
    except OSError:
        continue
    assert not text.strip(b'0 \\n') or path == '/proc/kallsyms' and text.startswith(b'0000000000000000'), path
"""),
    "writing /proc and /sys": Attack("""
import glob
groups = glob.glob('/sys/fs/cgroup/**/*', recursive=True)
for path in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', *groups[:200]):
    try:
        open(path, 'w').write('1')
    except OSError:
        continue
    raise SystemExit(path)
"""),
    "ptrace": Attack("""
import ctypes, os
library = ctypes.CDLL(None, use_errno=True)
assert library.ptrace(16, os.getppid(), 0, 0) == -1 and ctypes.get_errno() == 1
"""),
    "setuid": Attack("""
import os, shutil, subprocess
shutil.copy('/usr/bin/id', 'own-id')
try:
    os.chmod('own-id', 0o6755)
except OSError:
    pass
assert 'uid=0' not in subprocess.run(['./own-id'], capture_output=True, text=True).stdout
try:
    os.setuid(0)
except OSError:
    raise SystemExit
raise SystemExit('became root')
"""),
    "mount": Attack("""
import ctypes, subprocess
library = ctypes.CDLL(None, use_errno=True)
assert library.mount(b'x', b'/tmp', b'tmpfs', 0, None) == -1 and ctypes.get_errno() == 1
assert library.unshare(0x10020000) == -1
"""),
    "killing everything": Attack("""
import contextlib, os
with contextlib.suppress(ProcessLookupError):
    os.kill(-1, 9)
"""),
    "signalling the manager": Attack(f"""
import os
try:
    os.kill({os.getpid()}, 0)
except ProcessLookupError:
    raise SystemExit
raise SystemExit('reached')
"""),
    "killing the first process": Attack("import os\nfor n in (9, 15, 19): os.kill(1, n)"),
}
"""Attacks that end by themselves."""


def check_outcome(attack: Attack, result: AttemptResult, settings: SandboxSettings) -> None:
    told = {"pids": "pids", "out_of_memory": "memory"}
    if attack.limit is not None and tells(settings, told[attack.limit]):
        assert isinstance(result, Broken), result
        assert (result.failed.kind, result.failed.reason) == (outcome_pb2.FAILURE_KIND_RESOURCE_LIMIT, attack.limit)
        return
    assert isinstance(result, Completed), result
    done = result.succeeded.env_step
    if attack.succeeds:
        assert done.exit_code == 0 or done.signal == 9, (done.stdout.inline, done.stderr.inline)
    else:
        assert done.exit_code or done.signal


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_ends_in_a_typed_outcome(
    executor: SandboxExecutor, settings: SandboxSettings, measured: Measured, name: str
) -> None:
    attack = ATTACKS[name]
    async with neighbour(executor, measured):
        sandbox_id = await make(executor, "attacker")
        with anyio.fail_after(60):
            result = await executor.run(attempt_of(python_step(attack.code), sandbox_id=sandbox_id))
        check_outcome(attack, result, settings)
        await until_the_next_reset_works(executor)
    if name == "output flood":
        assert isinstance(result, Completed)
        assert result.succeeded.env_step.stdout_dropped_bytes == 3000 * (1 << 16) - 10_000


@pytest.mark.parametrize("path", ["out/file", "../file", "/etc/cron.d/file", "in/../../file", "file\0", ""])
async def test_a_path_trick_on_upload_is_refused(executor: SandboxExecutor, measured: Measured, path: str) -> None:
    async with neighbour(executor, measured):
        sandbox_id = await make(executor, "attacker")
        await executor.run(attempt_of(python_step("import os; os.symlink('/tmp', 'out')"), sandbox_id=sandbox_id))
        upload = step("true", inline_file(path, b"x"), trajectory="attacker")
        result = await executor.run(attempt_of(upload, sandbox_id=sandbox_id))
    assert isinstance(result, Broken)
    assert (result.failed.kind, result.failed.reason) == (
        outcome_pb2.FAILURE_KIND_ENV,
        "not_writable" if path.startswith("/") else "bad_path",
    )


async def test_a_command_that_ignores_signals_is_stopped(executor: SandboxExecutor, measured: Measured) -> None:
    code = """
import signal, subprocess, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["setsid", "sleep", "1000"])
open("begun", "w").close()
while True: time.sleep(1)
"""
    async with neighbour(executor, measured):
        attempt = attempt_of(python_step(code), sandbox_id=await make(executor, "attacker"))

        async with under_way(executor, attempt) as results:
            await until_sleepers_are([["sleep", "1000"]])
            attempt.stop_requested.set()
        assert isinstance(results[0], Stopped)
        await until_sleepers_are([])


async def test_orphaned_daemons_end_with_their_trajectory(executor: SandboxExecutor, measured: Measured) -> None:
    # Popen waits for the exec: the sandbox is frozen as soon as the step ends.
    code = "import subprocess\nfor _ in range(3): subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    async with neighbour(executor, measured):
        sandbox_id = await make(executor, "attacker")
        await completed(executor, python_step(code), sandbox_id=sandbox_id)
        await until_sleepers_are([["sleep", "1000"]] * 3)
        state = manager_service_pb2.SandboxState(job_id="job", trajectory_id="attacker", sandbox_id=sandbox_id)
        await executor.release_sandbox(state)
        await until_sleepers_are([])
