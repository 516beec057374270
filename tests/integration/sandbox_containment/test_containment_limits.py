"""What a sandbox can use up: its own share, and nothing of its neighbours'."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandSpec
from callsheet.managers.sandbox.errors import SandboxOutOfMemoryError
from callsheet.managers.sandbox.isolation.takers import DescriptorRoom, EpollRoom, Takers
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.sandboxes import (
    open_backend,
    open_sandbox,
    open_sandboxes,
    python,
    run,
    shell,
    spec_for,
    tells,
    until_file,
    until_sleepers_are,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.alone]


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


@pytest.mark.parametrize("place", ["/work", "/tmp", "/dev/shm"])
async def test_empty_files_are_counted_as_well(settings: SandboxSettings, place: str) -> None:
    code = f"""
made = 0
try:
    while made < 10_000:
        open(f"{place}/{{made}}", "x").close()
        made += 1
except OSError as error:
    print(error.errno)
print(made)
"""
    async with open_sandbox(settings, spec_for(settings, disk_mib=1)) as sandbox:
        number, made = (await python(sandbox, code)).split()
        assert number == "28"
        assert int(made) <= 256


async def test_a_memory_bomb_ends_and_the_sandbox_survives(settings: SandboxSettings) -> None:
    code = "held = []\nwhile True: held.append(bytearray(8 << 20))"
    async with open_sandbox(settings, spec_for(settings, memory_mib=128)) as sandbox:
        outcome = await run(sandbox, "python3", "-I", "-c", code)
        assert outcome.failed
        assert outcome.out_of_memory == tells(settings, "memory")
        assert await shell(sandbox, "echo alive") == "alive\n"


async def test_shared_memory_is_there_in_moderation(sandbox: AgentSandbox) -> None:
    code = """
import mmap, multiprocessing, os
for _ in range(40):
    with mmap.mmap(-1, 32 << 20) as memory:
        if os.fork() == 0:
            memory[0] = 7
            os._exit(0)
        os.wait()
        assert memory[0] == 7
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(sum(pool.map(abs, range(-9, 0))))
"""
    assert await python(sandbox, code) == "45\n"


@pytest.mark.parametrize("raised", [False, True])
async def test_only_a_keys_length_of_a_file_can_be_locked_in_memory(sandbox: AgentSandbox, raised: bool) -> None:
    """Locked pages of a file stay in memory while a sandbox is frozen."""
    code = f"""
import ctypes, mmap, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
usual, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most) if {raised} else (usual, most))
with open(sys.executable, "rb") as file:
    memory = mmap.mmap(file.fileno(), 1 << 20, mmap.MAP_PRIVATE)
start = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
for size in (16 << 10, 1 << 20):
    print(libc.mlock(start, ctypes.c_size_t(size)), ctypes.get_errno())
try:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
except ValueError:
    print("refused")
"""
    assert await python(sandbox, code) == "0 0\n-1 12\nrefused\n"


async def test_many_small_processes_that_fill_the_memory_leave_the_sandbox_alive(settings: SandboxSettings) -> None:
    # Each is smaller than the agent, which would be killed first for its size.
    code = """
import os, sys, time
for _ in range(60):
    if os.fork() == 0:
        held = bytearray(3 << 20)
        time.sleep(0.5)
        os._exit(0)
sys.exit(any(os.wait()[1] for _ in range(60)))
"""
    lived = 0
    # Now and then the kernel finds nobody else to kill, as all others are ending already. That is told as what it is.
    for _ in range(4):
        with suppress(SandboxOutOfMemoryError):
            async with open_sandbox(settings, spec_for(settings, memory_mib=64, max_processes=100)) as sandbox:
                outcome = await run(sandbox, "python3", "-I", "-c", code)
                told = tells(settings, "memory")
                # The engine limits memory, too, and its groups tell if they can be read.
                assert outcome.failed == (told or settings.isolation is Isolation.DOCKER)
                assert outcome.out_of_memory == told
                assert await shell(sandbox, "echo alive; cat /proc/self/oom_score_adj") == "alive\n1000\n"
                lived += 1
        if lived:
            break
    assert lived


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
        # What was killed may still be ending: this process and the first one are all that stays.
        await python(sandbox, "import os\nwhile sum(name.isdigit() for name in os.listdir('/proc')) > 2: pass")


async def _until_limit(sandbox: AgentSandbox) -> None:
    """Nothing can be started in the sandbox once the bomb is at its limit, so this looks from outside."""
    await until(lambda: "at-limit" in _names_below(sandbox.agent_pid), every_s=0.01)


def _names_below(pid: int) -> set[str]:
    names = set()
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            names.add(process.name())
    return names


async def test_one_sandboxes_processes_do_not_count_against_another(settings: SandboxSettings) -> None:
    async with open_sandboxes(settings, "first", "second", max_processes=20) as (first, second):
        fill = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 1000 >/dev/null 2>&1 & done; echo filled"
        assert await shell(first, fill) == "filled\n"
        assert await shell(second, fill) == "filled\n"


async def test_the_bounds_of_a_sandbox_are_not_the_machines(settings: SandboxSettings) -> None:
    before = _bounds_of_machine()
    async with open_sandbox(settings):
        assert _bounds_of_machine() == before


def _bounds_of_machine() -> list[str]:
    names = ("kernel/shmall", "kernel/sem", "kernel/msgmni", "user/max_inotify_instances", "user/max_inotify_watches")
    return [Path("/proc/sys", name).read_text() for name in names]


async def test_a_lock_on_a_file_of_the_system_is_each_sandboxes_own(settings: SandboxSettings) -> None:
    if settings.isolation is Isolation.DOCKER:
        pytest.skip("a container sees its image through an overlay of the engine")
    lock = "import fcntl; file = open('/usr/bin/env'); fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    held = f"{lock}; open('locked', 'x').close(); import time; time.sleep(1000)"
    async with open_backend(settings) as backend:
        one = await backend.create(spec_for(settings, "one"), lambda _: None)
        two = await backend.create(spec_for(settings, "two"), lambda _: None)
        try:
            await shell(one, f'python3 -c "{held}" >/dev/null 2>&1 & while [ ! -e locked ]; do sleep 0.01; done')
            assert (await run(one, "python3", "-c", lock)).failed
            # A manager that is no root cannot keep them apart, and says so.
            own = backend.capabilities()["own_file_locks"] == "yes"
            assert (await run(two, "python3", "-c", lock)).failed != own
            assert own == (os.geteuid() == 0)
        finally:
            await one.destroy()
            await two.destroy()


async def test_a_watch_tells_of_neighbours_only_where_they_share_directories(settings: SandboxSettings) -> None:
    if settings.isolation is Isolation.DOCKER:
        pytest.skip("a container sees its image through an overlay of the engine")
    watch = """
import ctypes, os, select, time
library = ctypes.CDLL(None)
watcher = library.inotify_init()
assert library.inotify_add_watch(watcher, b"/usr/bin", 0x20) > 0
open("watching", "x").close()
over = False
while not over:
    # What happened before is there to be read then.
    over = os.path.exists("over")
    if select.select([watcher], [], [], 0.01)[0] and b"basename" in os.read(watcher, 65536):
        open("seen", "w").close()
open("done", "x").close()
"""
    async with open_backend(settings) as backend:
        one = await backend.create(spec_for(settings, "one"), lambda _: None)
        two = await backend.create(spec_for(settings, "two"), lambda _: None)
        try:
            await one.execute(
                CommandSpec(("/bin/sh", "-c", 'python3 -c "$CODE" >/dev/null 2>&1 &'), environment={"CODE": watch}),
                anyio.Event(),
            )
            await until_file(one, "watching")
            await shell(two, "basename one")
            await shell(one, "touch over")
            await until_file(one, "done")
            own = backend.capabilities()["own_file_locks"] == "yes"
            assert await shell(one, "ls seen 2>/dev/null || true") == ("" if own else "seen\n")
        finally:
            await one.destroy()
            await two.destroy()


def _is_in_memory(path: str) -> bool:
    file = os.open(path, os.O_RDONLY)
    try:
        # What is not there is not waited for.
        return os.preadv(file, [bytearray(64)], 0, os.RWF_NOWAIT) == 64
    except BlockingIOError:
        return False
    finally:
        os.close(file)


async def test_files_of_the_system_stay_in_memory_and_are_not_written_out(sandbox: AgentSandbox) -> None:
    # No process has it mapped.
    file = "/usr/share/common-licenses/GPL-2"
    drop = f"import os; os.posix_fadvise(os.open('{file}', os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)"
    await shell(sandbox, f"cat {file} >/dev/null")
    await python(sandbox, drop)
    await shell(sandbox, "sync; sync -f /usr/bin")
    assert _is_in_memory(file)


async def test_a_program_may_filter_its_own_system_calls(sandbox: AgentSandbox) -> None:
    code = """
import ctypes, os, struct
library = ctypes.CDLL(None, use_errno=True)
refusing = [(0x20, 0, 0, 0), (0x15, 0, 1, 110), (6, 0, 0, 0x50005), (6, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in refusing))
words = struct.pack("HxxxxxxQ", 4, ctypes.addressof(program))
library.prctl(38, 1, 0, 0, 0)
for _ in range(9):
    assert library.syscall(317, 1, 0, words) == 0
for _ in range(4):
    if os.fork() == 0:
        assert library.prctl(22, 2, words, 0, 0) == 0
        os._exit(library.syscall(110) != -1)
print(library.syscall(110), ctypes.get_errno(), [os.wait()[1] for _ in range(4)])
"""
    for _ in range(3):
        assert await python(sandbox, code) == "-1 5 [0, 0, 0, 0]\n"


_HOLDS = {
    "descriptors on their way": "ends = socket.socketpair(); socket.send_fds(ends[0], [b'x'], [0] * 200)",
    "watches": "watcher, reader = select.epoll(), os.pipe()[0]\nfor _ in range(200): watcher.register(os.dup(reader))",
}


@pytest.mark.parametrize("hidden", [False, True], ids=["dumpable", "hidden"])
@pytest.mark.parametrize("held", _HOLDS)
async def test_who_takes_what_the_kernel_has_for_a_user_is_found_and_ended(
    settings: SandboxSettings, held: str, hidden: bool
) -> None:
    code = f"""
import ctypes, os, select, socket, time
{_HOLDS[held]}
ctypes.CDLL(None).prctl(4, {int(not hidden)})
open("holds", "x").close()
time.sleep(1000)
"""
    takers = Takers()
    answers = iter([False, True] * 2)
    rooms: dict[str, EpollRoom | DescriptorRoom]
    rooms = {"watches": EpollRoom(takers, lambda: next(answers)), "descriptors on their way": DescriptorRoom(takers)}
    async with open_sandboxes(settings, "quiet", "holder") as (quiet, holder):
        for sandbox in (quiet, holder):
            takers.add(sandbox, sandbox.agent_pid)
        await shell(quiet, "sleep 1000 >/dev/null 2>&1 &")
        await rooms[held].make()
        await until_file_of(holder, code)
        await rooms[held].make()
        await until_sleepers_are([["sleep", "1000"]])
        await python(holder, "import os\nwhile sum(name.isdigit() for name in os.listdir('/proc')) > 2: pass")


async def until_file_of(sandbox: AgentSandbox, code: str) -> None:
    """Starts Python code in the background, and waits until it has made the file "holds"."""
    await sandbox.execute(
        CommandSpec(("/bin/sh", "-c", 'python3 -c "$CODE" >/dev/null 2>&1 &'), environment={"CODE": code}),
        anyio.Event(),
    )
    await until_file(sandbox, "holds")
