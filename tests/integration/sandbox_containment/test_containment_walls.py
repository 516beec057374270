"""Doors that code which means harm tries from inside. Each attack is benign: it only looks whether one is open."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.sandboxes import python, run, shell

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


async def test_there_is_no_network(sandbox: AgentSandbox) -> None:
    # Kernels with tunnel drivers put one of each, which is down, into every network of its own.
    code = """
import fcntl, socket, struct
def is_up(name):
    answer = fcntl.ioctl(socket.socket(), 0x8913, struct.pack("16sH14x", name.encode(), 0))
    return struct.unpack("16sH14x", answer)[1] & 1
print([name for _, name in socket.if_nameindex() if is_up(name)])
for address in (("192.0.2.1", 80), ("169.254.169.254", 80)):
    try:
        socket.create_connection(address, 1)
        print("connected")
    except OSError:
        print("refused")
"""
    assert (await python(sandbox, code)).splitlines() == ["['lo']", "refused", "refused"]


async def test_foreign_socket_families_do_not_exist(sandbox: AgentSandbox) -> None:
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
    assert await python(sandbox, code) == ""


async def test_the_system_is_read_only(sandbox: AgentSandbox) -> None:
    code = """
for path in ("/usr/x", "/usr/bin/x", "/etc/x", "/etc/passwd", "/x", "/run/x", "/run/callsheet/agent/loop.py", "/opt/x",
             "/dev/x", "/var/x", "/proc/x"):
    try:
        open(path, "a").close()
        print("wrote", path)
    except OSError:
        pass
"""
    assert await python(sandbox, code) == ""


async def test_temporary_files_and_homes_of_the_host_are_out_of_sight(
    sandbox: AgentSandbox, settings: SandboxSettings, tmp_path: Path
) -> None:
    (tmp_path / "host-file").write_text("secret")
    assert await shell(sandbox, "ls -A /tmp /var/tmp") == "/tmp:\n\n/var/tmp:\n"
    assert await shell(sandbox, f"ls -d {tmp_path} 2>/dev/null || true") == ""
    if settings.isolation is Isolation.BUBBLEWRAP:
        assert await shell(sandbox, "ls -A /root /home /sys /boot 2>/dev/null || true") == ""


async def test_processes_of_the_host_are_out_of_sight(sandbox: AgentSandbox) -> None:
    code = f"""
import os
print(len([name for name in os.listdir("/proc") if name.isdigit()]))
try:
    os.kill({os.getpid()}, 0)
    print("reached")
except ProcessLookupError:
    print("unknown")
"""
    assert (await python(sandbox, code)).splitlines() == ["2", "unknown"]


async def test_kernel_settings_and_devices_cannot_be_opened(sandbox: AgentSandbox) -> None:
    code = """
import os
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/shmall",
             "/proc/sys/kernel/sem", "/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/user/max_inotify_instances",
             "/proc/sysrq-trigger", "/proc/1/mem",
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
    assert await python(sandbox, code) == ""


async def test_dangerous_system_calls_are_refused(sandbox: AgentSandbox) -> None:
    code = f"""
import ctypes
library = ctypes.CDLL(None, use_errno=True)
for name, (number, *arguments) in {_SYSCALLS!r}.items():
    answer = library.syscall(number, *arguments)
    print(name, "allowed" if answer >= 0 else ctypes.get_errno())
"""
    answers = dict(line.rsplit(" ", 1) for line in (await python(sandbox, code)).splitlines())
    assert set(answers) == set(_SYSCALLS)
    assert {name for name, answer in answers.items() if answer not in {"1", "38"}} == set()


async def test_the_first_process_cannot_be_slowed_or_starved(sandbox: AgentSandbox) -> None:
    code = """
import ctypes, os, resource, struct
library = ctypes.CDLL(None, use_errno=True)
limit, attributes = struct.pack("QQ", 0, 0), struct.pack("IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0)
calls = {
    "prlimit": (302, 1, resource.RLIMIT_NOFILE, limit, None),
    "cpu limit": (302, 1, resource.RLIMIT_CPU, limit, None),
    "priority": (141, 0, 1, 19),
    "priority of the group": (141, 1, 1, 19),
    "priority of the user": (141, 2, 0, 19),
    "scheduler": (144, 1, 5, struct.pack("i", 0)),
    "parameters": (142, 1, struct.pack("i", 0)),
    "attributes": (314, 1, attributes, 0),
    "io priority": (251, 1, 1, 3 << 13),
    "io priority of the user": (251, 3, 0, 3 << 13),
    "cores": (203, 1, 8, struct.pack("Q", 1)),
}
for name, (number, *arguments) in calls.items():
    if library.syscall(number, *arguments) != -1 or ctypes.get_errno() != 1:
        print(name, ctypes.get_errno())
print(resource.prlimit(1, resource.RLIMIT_NOFILE) != (0, 0))
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
before = os.getpriority(os.PRIO_PROCESS, 0)
os.nice(1)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
print(os.getpriority(os.PRIO_PROCESS, 0) - before, os.sched_getscheduler(0) == os.SCHED_BATCH)
"""
    assert await python(sandbox, code) == "True\n1 True\n"
    # Of a container the engine says how nice it is.
    nicer = int(await shell(sandbox, "nice")) + 5
    assert await shell(sandbox, "nice -n 5 nice; ulimit -n 50; ulimit -n") == f"{nicer}\n50\n"


async def test_privileges_cannot_be_gained(sandbox: AgentSandbox) -> None:
    code = """
import os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(status["CapEff"].strip(), status["CapBnd"].strip(), status["NoNewPrivs"].strip(), status["Seccomp"].strip())
print(os.getuid() in (0, 65534))
try:
    os.setuid(0)
    print("root")
except OSError:
    print("refused")
"""
    expected = ["0000000000000000 0000000000000000 1 2", "False", "refused"]
    assert (await python(sandbox, code)).splitlines() == expected


async def test_the_first_process_cannot_be_signalled(sandbox: AgentSandbox) -> None:
    for number in (2, 9, 15, 19):
        await run(sandbox, "/bin/sh", "-c", f"kill -{number} 1")
    assert await shell(sandbox, "echo alive") == "alive\n"


async def test_the_first_processes_descriptors_are_out_of_reach(sandbox: AgentSandbox) -> None:
    assert (await run(sandbox, "ls", "/proc/1/fd")).failed
    listing = await python(sandbox, "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])")
    assert listing == "[0, 1, 2]\n"


async def test_keystrokes_cannot_be_injected(sandbox: AgentSandbox) -> None:
    code = """
import fcntl
for request in (0x5412, 0x541C):
    try:
        fcntl.ioctl(0, request, b"x")
        print("injected")
    except OSError as error:
        print(error.errno)
"""
    assert (await python(sandbox, code)).splitlines() == ["1", "1"]


async def test_cores_cannot_be_widened(sandbox: AgentSandbox, settings: SandboxSettings) -> None:
    core = min(settings.cores)
    code = """
import os
try:
    os.sched_setaffinity(0, range(os.cpu_count()))
except OSError:
    pass
print(sorted(os.sched_getaffinity(0)))
"""
    await sandbox.grant(frozenset({core}))
    assert await python(sandbox, code) == f"[{core}]\n"


async def test_the_payload_is_never_the_hosts_root(sandbox: AgentSandbox) -> None:
    uids = psutil.Process(sandbox.agent_pid).uids()
    assert 0 not in uids
    if os.geteuid() != 0:
        assert set(uids) == {os.geteuid()}
