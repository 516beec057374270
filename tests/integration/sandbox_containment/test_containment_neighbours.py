"""What one sandbox could take from all: kernel objects and memory that no limit of a process counts."""

from __future__ import annotations

from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.managers.executor import Broken, Completed
from callsheet.managers.sandbox.agent.filters import MOST_FILTERS
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.isolation.kernel_bounds import most_netlink_sockets, most_processes
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import outcome_pb2

from tests.support.executor_runs import completed
from tests.support.expected import expect
from tests.support.measurements import Measured
from tests.support.neighbours import MEMORY_MIB, PROCESSES, make, neighbour, python_step, until_the_next_reset_works
from tests.support.sandbox_attempts import attempt_of, reset, step
from tests.support.sandboxes import tells
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.alone]

_SYSTEM_V = """
import ctypes
library = ctypes.CDLL(None, use_errno=True)
library.shmat.restype = ctypes.c_void_p
def made(call, most):
    for count in range(most):
        if call() < 0:
            return count
    return most
"""
# Each says what it got hold of; the second number is what it must stay below.
TAKEN = {
    "shared memory of System V": (
        _SYSTEM_V
        + """
def segment():
    number = library.shmget(0, 8 << 20, 0o1600)
    if number >= 0:
        address = library.shmat(number, None, 0)
        ctypes.memset(address, 1, 8 << 20)
        library.shmdt(ctypes.c_void_p(address))
    return number
print(8 * made(segment, 80))
""",
        MEMORY_MIB // 2,
    ),
    "semaphores": (_SYSTEM_V + "print(made(lambda: library.semget(0, 250, 0o1600), 2000))", 128),
    "messages": (_SYSTEM_V + "print(made(lambda: library.msgget(0, 0o1600), 2000))", 32),
    "message queues": (
        _SYSTEM_V
        + "names = iter(range(999))\nprint(made(lambda: library.mq_open(b'/%d' % next(names), 66, 384, 0), 99))",
        0,
    ),
    "contexts of asynchronous I/O": (
        _SYSTEM_V + "print(made(lambda: library.syscall(206, 64, ctypes.byref(ctypes.c_ulong())), 2000))",
        0,
    ),
    "secret memory": (_SYSTEM_V + "print(made(lambda: library.syscall(447, 0), 10))", 0),
    "terminals": (
        """
import os
held = []
try:
    while len(held) < 500:
        held.append(os.openpty())
except OSError:
    pass
print(len(held))
""",
        64,
    ),
    "watches": (
        """
import ctypes
library = ctypes.CDLL(None)
count = 0
while count < 100_000 and library.inotify_init() >= 0:
    count += 1
print(count)
""",
        int(Path("/proc/sys/fs/inotify/max_user_instances").read_text()) // 4,
    ),
    "netlink sockets": (
        """
import os, socket, threading
told = os.pipe()
def take():
    held = []
    try:
        while len(held) < 200:
            # Unbound: then the kernel lists them in fewer places.
            held.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 2))
    except OSError:
        pass
    return held
for _ in range(8):
    if os.fork() == 0:
        held = take()
        os.write(told[1], b"%9d" % len(held))
        os.setsid()
        threading.Event().wait()
print(sum(int(os.read(told[0], 9)) for _ in range(8)))
""",
        most_netlink_sockets(MEMORY_MIB),
    ),
    "filters of sockets": (
        """
import ctypes, socket, struct
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFFFFFF))
words = struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))
held = []
try:
    while len(held) < 100:
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        plain.setsockopt(socket.SOL_SOCKET, 26, words)
        held.append(plain)
except OSError:
    pass
print(len(held))
""",
        0,
    ),
    "filters of system calls": (
        """
import ctypes, os, struct, threading
library = ctypes.CDLL(None)
library.prctl(38, 1, 0, 0, 0)
told = os.pipe()
def take(size):
    # A thread may have thousands of the smallest and three of the largest.
    program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000) * size)
    words = struct.pack("HxxxxxxQ", size, ctypes.addressof(program))
    for count in range(50):
        call = library.prctl(22, 2, words, 0, 0) if count % 2 else library.syscall(317, 1, 0, words)
        if call != 0:
            return count
    return count
for number in range(8):
    if os.fork() == 0:
        os.write(told[1], b"%9d" % take(4096 if number % 2 else 1))
        os.setsid()
        threading.Event().wait()
print(sum(int(os.read(told[0], 9)) for _ in range(8)))
""",
        MOST_FILTERS,
    ),
    "keys": (
        _SYSTEM_V + "print(made(lambda: library.syscall(248, b'user', b'name', b'x', 1, -3), 9))",
        0,
    ),
    "cookies of cores": (_SYSTEM_V + "print(made(lambda: library.prctl(62, 1, 0, 0, 0), 1))", 0),
    "copies of mounts": (_SYSTEM_V + "print(made(lambda: library.syscall(467, -100, b'/', 0, 0, 0), 9))", 0),
    "pages that become one": (
        """
import mmap
try:
    mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE).madvise(12)
    print(1)
except OSError:
    print(0)
""",
        0,
    ),
}
_OF_CONTAINERS = {
    "message queues",
    "contexts of asynchronous I/O",
    "netlink sockets",
    "filters of sockets",
    "filters of system calls",
    "keys",
    "cookies of cores",
    "copies of mounts",
    "pages that become one",
}
_MOST = str(MEMORY_MIB)
_FILLING = """
import mmap, os
held = []
try:
    while len(held) < 80:
        {take}
        for start in range(0, 8 << 20, 4096):
            memory[start] = 1
        {keep}
except OSError:
    pass
assert 8 * len(held) <= {most}, len(held)
"""
FILLED = {
    "memory files": _FILLING.format(
        take="f = os.memfd_create('x'); os.ftruncate(f, 8 << 20); memory = mmap.mmap(f, 8 << 20)",
        keep="held.append(f)",
        most=_MOST,
    ),
    "shared mappings": _FILLING.format(take="memory = mmap.mmap(-1, 8 << 20)", keep="held.append(memory)", most=_MOST),
    "mappings of /dev/zero": _FILLING.format(
        take="f = os.open('/dev/zero', os.O_RDWR); memory = mmap.mmap(f, 8 << 20)",
        keep="held.append(memory)",
        most=_MOST,
    ),
    "mappings of which one page stays": """
import ctypes, mmap
library = ctypes.CDLL(None)
library.mmap.restype = ctypes.c_void_p
count = 0
while count < 80:
    address = library.mmap(None, 8 << 20, 3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        break
    ctypes.memset(address, 1, 8 << 20)
    library.munmap(ctypes.c_void_p(address + 4096), (8 << 20) - 4096)
    count += 1
assert 8 * count <= MOST, count
""".replace("MOST", _MOST),
    "memory that grows downwards": _FILLING.format(
        take="memory = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100)",
        keep="held.append(memory)",
        most=_MOST,
    ),
}
_SENDING = """
import os, resource, socket, threading
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
threading.stack_size(1 << 18)
held, nothing = [], os.open("/dev/null", os.O_RDONLY)
def flood():
    while True:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        held.append(ends)
        ends[0].setblocking(False)
        try:
            while True:
                socket.send_fds(ends[0], [b"x"], [nothing] * 253)
        except BlockingIOError:
            continue
        except OSError:
            return
def send_late(place):
    socket.send_fds(place, [b"x"], [nothing] * 253)
def blocked():
    receiver, sender, late = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3))
    receiver.bind(f"receiver-{{len(held)}}")
    sender.connect(receiver.getsockname())
    late.connect(receiver.getsockname())
    sender.setblocking(False)
    try:
        while True:
            sender.send(b"x")
    except BlockingIOError:
        thread = threading.Thread(target=send_late, args=(late,), daemon=True)
        thread.start()
    held.append((receiver, sender, late))
    return receiver, thread
late = [blocked() for _ in range({late})]
while late and not all(open(f"/proc/self/task/{{thread.native_id}}/wchan").read() != "0" for _, thread in late):
    pass
flood()
for receiver, _ in late:
    receiver.recv(1)
for _, thread in late:
    thread.join()
open("taken", "x").close()
threading.Event().wait()
"""


@pytest.mark.parametrize("name", TAKEN)
async def test_what_the_kernel_has_for_all_is_bounded(
    executor: SandboxExecutor, settings: SandboxSettings, measured: Measured, name: str
) -> None:
    if settings.isolation is Isolation.DOCKER and name not in _OF_CONTAINERS:
        pytest.skip("in containers only the memory that it takes is bounded")
    code, most = TAKEN[name]
    async with neighbour(executor, measured):
        sandbox_id = await make(executor, "attacker")
        result = await completed(executor, python_step(code), sandbox_id=sandbox_id)
        assert int(result.env_step.stdout.inline) <= most
        await until_the_next_reset_works(executor)


@pytest.mark.parametrize("name", FILLED)
async def test_memory_of_no_process_stays_within_the_limit(
    executor: SandboxExecutor, settings: SandboxSettings, measured: Measured, name: str
) -> None:
    async with neighbour(executor, measured):
        sandbox_id = await make(executor, "attacker")
        result = await executor.run(attempt_of(python_step(FILLED[name]), sandbox_id=sandbox_id))
        if tells(settings, "memory"):
            assert isinstance(result, Broken), result
            assert result.failed.reason == "out_of_memory"
        else:
            assert isinstance(result, Completed), result
            assert result.succeeded.env_step.exit_code == 0, result.succeeded.env_step.stderr.inline
        await until_the_next_reset_works(executor)


async def test_buffers_of_sockets_are_bounded_where_memory_is(
    executor: SandboxExecutor, settings: SandboxSettings, measured: Measured
) -> None:
    code = """
import socket
listener = socket.create_server(("127.0.0.1", 0), backlog=200)
held, sent = [], 0
for _ in range(80):
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    for end in (sender, receiver):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    sender.setblocking(False)
    try:
        while True:
            sent += sender.send(bytes(1 << 16))
    except BlockingIOError:
        held.append((sender, receiver))
print(sent >> 20)
"""
    async with neighbour(executor, measured):
        sandbox_id = await make(executor, "attacker")
        result = await executor.run(attempt_of(python_step(code), sandbox_id=sandbox_id))
        if isinstance(result, Completed):
            sent_mib = int(result.succeeded.env_step.stdout.inline)
            assert sent_mib <= MEMORY_MIB // 2 or not tells(settings, "memory")
        else:
            assert isinstance(result, Broken), result
            assert result.failed.reason == "out_of_memory"
        await until_the_next_reset_works(executor)


@pytest.mark.parametrize("late", [0, PROCESSES - 2], ids=["flood", "flood-with-late-senders"])
async def test_descriptors_on_their_way_leave_room_for_the_managers(
    executor: SandboxExecutor, measured: Measured, late: int
) -> None:
    async with neighbour(executor, measured), anyio.create_task_group() as tasks:
        sandbox_id = await make(executor, "attacker")
        attack = attempt_of(python_step(_SENDING.format(late=late)), sandbox_id=sandbox_id)
        tasks.start_soon(executor.run, attack)
        with anyio.fail_after(60):
            await until(lambda: _is_waiting(executor, sandbox_id), every_s=0.05)
            for _ in range(3):
                other = await make(executor, "third")
                await completed(executor, step("true", trajectory="third"), sandbox_id=other)
        attack.stop_requested.set()


def _is_waiting(executor: SandboxExecutor, sandbox_id: str) -> bool:
    """Whether the attack has taken what it can, or was ended for it."""
    state = next(state for state in executor.sandboxes() if state.sandbox_id == sandbox_id)
    sandbox = expect(AgentSandbox, executor.find_sandbox(state))
    inside = psutil.Process(sandbox.agent_pid).children(recursive=True)
    return not inside or any(Path(f"/proc/{process.pid}/root/work/taken").exists() for process in inside)


async def test_more_processes_than_one_may_have_are_refused(executor: SandboxExecutor) -> None:
    action = reset(trajectory="many")
    action.env_reset.max_processes = 1_000_000
    result = expect(Broken, await executor.run(attempt_of(action)))
    assert (result.failed.kind, result.failed.reason) == (outcome_pb2.FAILURE_KIND_ENV, "too_many_processes")
    assert "max_processes: 1000000: must be at most" in result.failed.message
    action = reset(trajectory="some")
    action.env_reset.max_processes = most_processes()
    assert isinstance(await executor.run(attempt_of(action)), Completed)
