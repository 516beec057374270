"""Attacks from inside a sandbox, by code that means harm. Each is benign: it only looks whether a door is open."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.managers.sandbox.agent_sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandSpec
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.other_user import REPOSITORY, directory_of_other_user, run_as_other_user
from tests.support.sandboxes import (
    Variant,
    open_backend,
    open_sandbox,
    python,
    run,
    settings_for,
    shell,
    spec_for,
    tells,
    until_sleepers_are,
    variants,
)

pytestmark = pytest.mark.anyio

_SYSCALLS = {
    "ptrace": (101, 16, 1, 0, 0),
    "pivot_root": (155, 0, 0),
    "mount": (165, 0, 0, 0, 0, 0),
    "add_key": (248, 0, 0, 0, 0, 0),
    "keyctl": (250, 0, 0),
    "unshare user": (272, 0x10000000),
    "unshare mount": (272, 0x00020000),
    "perf_event_open": (298, 0, 0, -1, -1, 0),
    "setns": (308, 0, 0),
    "process_vm_readv": (310, 1, 0, 0, 0, 0, 0),
    "bpf": (321, 0, 0, 0),
    "userfaultfd": (323, 0),
    "io_uring_setup": (425, 1, 0),
    "clone3": (435, 0, 88),
    "pidfd_getfd": (438, 0, 0, 0),
}


@pytest.fixture(params=variants(Isolation.BUBBLEWRAP), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    variant: Variant = request.param
    return settings_for(variant, tmp_path)


async def test_there_is_no_network(settings: SandboxSettings) -> None:
    code = """
import socket
print([name for _, name in socket.if_nameindex()])
for address in (("192.0.2.1", 80), ("169.254.169.254", 80)):
    try:
        socket.create_connection(address, 1)
        print("connected")
    except OSError:
        print("refused")
"""
    async with open_sandbox(settings) as sandbox:
        assert (await python(sandbox, code)).splitlines() == ["['lo']", "refused", "refused"]


async def test_foreign_socket_families_do_not_exist(settings: SandboxSettings) -> None:
    code = """
import socket
for family in (17, 29, 31, 38, 40, 42):
    for kind in (1, 2, 3):
        try:
            socket.socket(family, kind)
            print("made", family, kind)
        except OSError:
            pass
"""
    async with open_sandbox(settings) as sandbox:
        assert await python(sandbox, code) == ""


async def test_the_system_is_read_only(settings: SandboxSettings) -> None:
    code = """
for path in ("/usr/x", "/usr/bin/x", "/etc/x", "/etc/passwd", "/x", "/run/x", "/run/callsheet/agent/loop.py", "/opt/x",
             "/dev/x", "/var/x", "/proc/x"):
    try:
        open(path, "a").close()
        print("wrote", path)
    except OSError:
        pass
"""
    async with open_sandbox(settings) as sandbox:
        assert await python(sandbox, code) == ""


async def test_temporary_files_and_homes_of_the_host_are_out_of_sight(
    settings: SandboxSettings, tmp_path: Path
) -> None:
    (tmp_path / "host-file").write_text("secret")
    async with open_sandbox(settings) as sandbox:
        assert await shell(sandbox, "ls -A /tmp /var/tmp; ls -A /root /home /sys /boot 2>/dev/null || true") == (
            "/tmp:\n\n/var/tmp:\n"
        )


async def test_processes_of_the_host_are_out_of_sight(settings: SandboxSettings) -> None:
    code = f"""
import os
print(len([name for name in os.listdir("/proc") if name.isdigit()]))
try:
    os.kill({os.getpid()}, 0)
    print("reached")
except ProcessLookupError:
    print("unknown")
"""
    async with open_sandbox(settings) as sandbox:
        assert (await python(sandbox, code)).splitlines() == ["2", "unknown"]


async def test_kernel_settings_and_devices_cannot_be_opened(settings: SandboxSettings) -> None:
    code = """
import os
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/proc/1/mem",
             "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/kvm", "/dev/mem"):
    try:
        os.open(path, os.O_WRONLY)
        print("opened", path)
    except OSError:
        pass
for path in ("/proc/1/root/etc/shadow", "/proc/kcore", "/proc/1/environ", "/etc/shadow", "/proc/1/maps"):
    try:
        if open(path, "rb").read(10):
            print("read", path)
    except OSError:
        pass
"""
    async with open_sandbox(settings) as sandbox:
        assert await python(sandbox, code) == ""


async def test_dangerous_system_calls_are_refused(settings: SandboxSettings) -> None:
    code = f"""
import ctypes
library = ctypes.CDLL(None, use_errno=True)
for name, (number, *arguments) in {_SYSCALLS!r}.items():
    answer = library.syscall(number, *arguments)
    print(name, "allowed" if answer >= 0 else ctypes.get_errno())
"""
    async with open_sandbox(settings) as sandbox:
        answers = dict(line.rsplit(" ", 1) for line in (await python(sandbox, code)).splitlines())
    assert set(answers) == set(_SYSCALLS)
    assert {name for name, answer in answers.items() if answer not in {"1", "38"}} == set()


async def test_privileges_cannot_be_gained(settings: SandboxSettings) -> None:
    code = """
import os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(status["CapEff"].strip(), status["CapBnd"].strip(), status["NoNewPrivs"].strip(), status["Seccomp"].strip())
print(os.getuid())
try:
    os.setuid(0)
    print("root")
except OSError:
    print("refused")
"""
    async with open_sandbox(settings) as sandbox:
        expected = ["0000000000000000 0000000000000000 1 2", "1000", "refused"]
        assert (await python(sandbox, code)).splitlines() == expected


async def test_the_first_process_cannot_be_signalled(settings: SandboxSettings) -> None:
    async with open_sandbox(settings) as sandbox:
        for number in (2, 9, 15, 19):
            await run(sandbox, "/bin/sh", "-c", f"kill -{number} 1")
        assert await shell(sandbox, "echo alive") == "alive\n"


async def test_the_first_processes_descriptors_are_out_of_reach(settings: SandboxSettings) -> None:
    async with open_sandbox(settings) as sandbox:
        assert (await run(sandbox, "ls", "/proc/1/fd")).failed
        listing = await python(sandbox, "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])")
        assert listing == "[0, 1, 2]\n"


async def test_keystrokes_cannot_be_injected(settings: SandboxSettings) -> None:
    code = """
import fcntl
for request in (0x5412, 0x541C):
    try:
        fcntl.ioctl(0, request, b"x")
        print("injected")
    except OSError as error:
        print(error.errno)
"""
    async with open_sandbox(settings) as sandbox:
        assert (await python(sandbox, code)).splitlines() == ["1", "1"]


@pytest.mark.parametrize("place", ["/work", "/tmp", "/dev/shm"])
async def test_a_disk_filler_stops_at_the_size(settings: SandboxSettings, place: str) -> None:
    code = f"""
written = 0
try:
    with open("{place}/fill", "wb", buffering=0) as file:
        while written < 200:
            file.write(bytes(1 << 20))
            written += 1
except OSError as error:
    print(error.errno)
print(written)
"""
    async with open_sandbox(settings, spec_for(settings, disk_mib=16)) as sandbox:
        number, written = (await python(sandbox, code)).split()
        assert number == "28"
        assert int(written) <= 16
        await shell(sandbox, f"rm {place}/fill")


async def test_a_memory_bomb_ends_and_the_sandbox_survives(settings: SandboxSettings) -> None:
    code = "held = []\nwhile True: held.append(bytearray(8 << 20))"
    async with open_sandbox(settings, spec_for(settings, memory_mib=128)) as sandbox:
        outcome = await run(sandbox, "python3", "-I", "-c", code)
        assert outcome.failed
        assert outcome.out_of_memory == tells(settings, "memory")
        assert await shell(sandbox, "echo alive") == "alive\n"


async def test_a_fork_bomb_is_bounded_and_ends_with_a_stop(settings: SandboxSettings) -> None:
    code = """
import os, time
made = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(1000)
        made += 1
    except OSError:
        open("limit", "w").write(str(made))
        open("/proc/self/comm", "w").write("at-limit")
        time.sleep(1000)
"""
    async with open_sandbox(settings, spec_for(settings, max_processes=24)) as sandbox:
        stop = anyio.Event()
        outcomes = []

        async def bomb() -> None:
            outcomes.append(await sandbox.execute(CommandSpec(("python3", "-I", "-c", code)), stop))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bomb)
            await _until_limit(sandbox)
            stop.set()
        assert outcomes[0].stopped
        assert outcomes[0].process_limit == tells(settings, "pids")
        assert int(await shell(sandbox, "cat limit")) <= 24
        assert await python(sandbox, "import os; print(len([n for n in os.listdir('/proc') if n.isdigit()]))") == "2\n"


async def _until_limit(sandbox: AgentSandbox) -> None:
    """Nothing can be started in the sandbox once the bomb is at its limit, so this looks from outside."""
    with anyio.fail_after(30):
        while "at-limit" not in _names_below(sandbox.agent_pid):  # noqa: ASYNC110 - forks are no events here
            await anyio.sleep(0.01)


def _names_below(pid: int) -> set[str]:
    names = set()
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            names.add(process.name())
    return names


async def test_one_sandboxes_processes_do_not_count_against_another(settings: SandboxSettings) -> None:
    async with open_backend(settings) as backend:
        first = await backend.create(spec_for(settings, "first", max_processes=20), lambda _: None)
        second = await backend.create(spec_for(settings, "second", max_processes=20), lambda _: None)
        try:
            fill = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 1000 >/dev/null 2>&1 & done; echo filled"
            assert await shell(first, fill) == "filled\n"
            assert await shell(second, fill) == "filled\n"
        finally:
            await first.destroy()
            await second.destroy()


async def test_an_output_flood_is_bounded(settings: SandboxSettings) -> None:
    async with open_sandbox(settings) as sandbox:
        command = CommandSpec(("/bin/sh", "-c", "head -c 200000000 /dev/zero"), max_output_bytes=10_000)
        outcome = await sandbox.execute(command, anyio.Event())
        assert (len(outcome.stdout), outcome.stdout_dropped) == (10_000, 199_990_000)


async def test_daemons_end_with_the_sandbox(settings: SandboxSettings) -> None:
    async with open_sandbox(settings) as sandbox:
        daemon = "(trap '' TERM HUP; exec setsid sleep 1000) >/dev/null 2>&1 </dev/null &"
        await shell(sandbox, daemon * 3)
        await until_sleepers_are([["sleep", "1000"]] * 3)
    await until_sleepers_are([])


async def test_cores_cannot_be_widened(settings: SandboxSettings) -> None:
    core = min(settings.cores)
    code = """
import os
try:
    os.sched_setaffinity(0, range(os.cpu_count()))
except OSError:
    pass
print(sorted(os.sched_getaffinity(0)))
"""
    async with open_sandbox(settings) as sandbox:
        await sandbox.grant(frozenset({core}))
        assert await python(sandbox, code) == f"[{core}]\n"


async def test_the_payload_is_never_the_hosts_root(settings: SandboxSettings) -> None:
    async with open_sandbox(settings) as sandbox:
        uids = psutil.Process(sandbox.agent_pid).uids()
        assert 0 not in uids
        if os.geteuid() != 0:
            assert set(uids) == {os.geteuid()}


# For anybody else the tests above have run as an unprivileged user already.
if os.geteuid() == 0:

    @pytest.mark.timeout(400)
    def test_all_of_this_holds_for_an_unprivileged_user() -> None:
        with directory_of_other_user() as home:
            done = run_as_other_user(
                [
                    *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={home}/pytest"),
                    *(f"--rootdir={REPOSITORY}", "-c", str(REPOSITORY / "pyproject.toml")),
                    str(REPOSITORY / "tests/integration/test_sandbox_containment.py"),
                    str(REPOSITORY / "tests/contract/test_sandbox_backend.py"),
                    *(
                        "--deselect",
                        f"{Path(__file__).relative_to(REPOSITORY)}::test_all_of_this_holds_for_an_unprivileged_user",
                    ),
                ],
                home,
                {"CI": os.environ.get("CI", "")},
                timeout_s=380,
            )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
