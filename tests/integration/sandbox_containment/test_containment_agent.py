"""What code inside tries on the agent, the first process of its sandbox, and on the processes of other commands.

The agent must go on working, and nothing of what was put in its way may run: that would leave a file `taken`.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import FileSpec, SessionLanguage, StepSpec
from callsheet.managers.sandbox.errors import SandboxDiedError, SandboxLostError
from callsheet.managers.sandbox.files.root_filesystem import RootFilesystem
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import outcome_pb2

from tests.support.expected import expect
from tests.support.root_filesystems import PROGRAMS, make_root, require_overlays
from tests.support.sandbox_steps import sh
from tests.support.sandboxes import open_sandbox, python, run, shell, spec_for, until_sleepers_are

pytestmark = pytest.mark.anyio

_TAKEN = "import os; os.close(os.open('/tmp/taken', os.O_CREAT | os.O_WRONLY))"
_REPLACE = f"""
cd /run/callsheet/agent
for file in *.py __pycache__/*; do
  echo "{_TAKEN}" > $file; rm -f $file; echo "{_TAKEN}" > new; mv new $file
done
for place in /run/callsheet/agent /run/callsheet/usr /run/callsheet /run; do
  mv $place $place-aside && cp -r $place-aside $place
done
mkdir -p /run/callsheet/agent && echo "{_TAKEN}" > /run/callsheet/agent/files.py
true
"""
_SHADOWS = ("files", "network", "tarfile", "gzip", "zlib", "_bz2", "json", "socket", "struct", "errno", "ctypes", "os")
_SHADOW = f"""
for place in /work /tmp /usr/lib/python3 /usr/lib/python3.11 /usr/lib/python3.11/lib-dynload /usr/local/lib \\
             /lib/python3.11 /run /run/callsheet /; do
  mkdir -p $place/encodings
  for name in {" ".join(_SHADOWS)} encodings/utf_8 encodings/idna encodings/latin_1; do
    echo "{_TAKEN}" > $place/$name.py
  done
done 2>/dev/null
for name in libz.so.1 libbz2.so.1.0 libffi.so.8 libc.so.6; do
  for place in /usr/lib /usr/lib/x86_64-linux-gnu /lib /lib/x86_64-linux-gnu; do
    [ -e $place/$name ] || echo none > $place/$name
  done
done 2>/dev/null
true
"""


@pytest.fixture(scope="module")
def image(settings: SandboxSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of some programs, of which its root may write everything."""
    if settings.isolation is not Isolation.BUBBLEWRAP:
        pytest.skip("the images of an engine are read-only")
    require_overlays()
    place = tmp_path_factory.mktemp("images")
    place.chmod(0o755)
    return make_root(place / "tiny", [*PROGRAMS, "cp", "true"])


@pytest.fixture(params=["system", "image"])
def with_image(request: pytest.FixtureRequest) -> RootFilesystem:
    """The files that a sandbox begins with."""
    if request.param == "system":
        return RootFilesystem()
    place: Path = request.getfixturevalue("image")
    return RootFilesystem("tiny", (place,))


@asynccontextmanager
async def _sandbox(settings: SandboxSettings, root: RootFilesystem) -> AsyncIterator[AgentSandbox]:
    async with open_sandbox(settings, replace(spec_for(settings), root=root)) as sandbox:
        yield sandbox


async def _use_everything(sandbox: AgentSandbox) -> None:
    """Uses all that the agent can do; nothing that was put in its way has run then."""
    stop = anyio.Event()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as packed:
        member = tarfile.TarInfo("packed")
        member.size = 3
        packed.addfile(member, io.BytesIO(b"abc"))
    await sandbox.write_file(FileSpec("written", b"abc"), stop)
    await sandbox.write_file(FileSpec("into", archive.getvalue(), unpack=True), stop)
    await sandbox.write_file(FileSpec("made", directory=True), stop)
    assert await sandbox.read_file("into/packed", 100, stop) == b"abc"
    await sandbox.remove_file("written", stop)
    (await sandbox.open_listener(3456)).close()
    assert (await sh(sandbox, "echo session")).stdout == b"session\n"
    assert await shell(sandbox, "ls -d made into; ls /tmp") == "into\nmade\n"
    assert sandbox.loss is None


@pytest.mark.parametrize("attack", [_REPLACE, _SHADOW], ids=["replaced files", "shadowed modules"])
async def test_the_agent_runs_nothing_but_its_own_program(
    settings: SandboxSettings, with_image: RootFilesystem, attack: str
) -> None:
    async with _sandbox(settings, with_image) as sandbox:
        await run(sandbox, "/bin/sh", "-c", attack)
        # What was put there for it, and did not run.
        await shell(sandbox, "cd /tmp && rm -rf ./*")
        await _use_everything(sandbox)


async def test_nothing_of_the_first_process_can_be_opened(
    settings: SandboxSettings, with_image: RootFilesystem
) -> None:
    # By a shell, as the image has no Python: what it may open it opens, and says so. In a container without a user
    # namespace anybody may open some files of mode 0666, such as attr/current, and what is written is refused.
    script = """
for file in /proc/1/* /proc/1/attr/* /proc/1/task/1/* /proc/1/task/1/attr/*; do
  [ -d $file ] || { ( echo 0 > $file ) 2>/dev/null && echo "writes $file"; }
done
for file in /proc/1/*; do for name in environ mem maps auxv stack syscall io pagemap numa_maps smaps; do
  ( read -r line < /proc/1/$name ) 2>/dev/null && echo "reads $name"
done; break; done
for place in cwd root exe fd/0 fd/1 fd/3 ns/mnt ns/user map_files task/1/cwd task/1/root; do
  ls /proc/1/$place/ >/dev/null 2>&1 && echo "enters $place"
  ( : < /proc/1/$place ) 2>/dev/null && echo "opens $place"
done
true
"""
    async with _sandbox(settings, with_image) as sandbox:
        said = await shell(sandbox, script)
        # One of the directories whose names may be listed, and nothing in them be opened.
        assert set(said.splitlines()) <= {"opens map_files"}, said


async def _left_behind(sandbox: AgentSandbox, code: str) -> None:
    """Leaves a Python process behind, which is ready."""
    script = f"python3 -I -c '{code}' </dev/null >/dev/null 2>&1 &\nwhile [ ! -e ready ]; do sleep 0.01; done"
    await shell(sandbox, script)


_LOOK = """
def look(pid):
    # What has ended can still be opened, and holds nothing.
    ways = {
        "mem": lambda path: open(path, "r+b", 0).close() or 1,
        **dict.fromkeys(("maps", "environ", "stack", "syscall"), lambda path: open(path, "rb", 0).read(1)),
        **dict.fromkeys(("fd/0", "fd/1", "cwd", "root", "exe"), os.readlink),
    }
    seen = []
    for name, way in ways.items():
        try:
            if way(f"/proc/{pid}/{name}"):
                seen.append(name)
        except OSError:
            pass
    return seen
"""


async def test_a_command_cannot_look_into_what_an_earlier_one_left(sandbox: AgentSandbox) -> None:
    if not sandbox.separates_commands:
        pytest.skip("this kernel has no Landlock")
    await _left_behind(sandbox, 'import time; open("ready", "w").close(); time.sleep(1000)')
    other = "pid = next(p for p in map(int, filter(str.isdigit, os.listdir('/proc'))) if p not in (1, os.getpid()))"
    code = f"import os, signal\n{_LOOK}\n{other}\nprint(look(pid), bool(look(os.getpid())))\nos.kill(pid, 9)"
    assert await python(sandbox, code) == "[] True\n", "and signals pass"
    assert sandbox.loss is None


@pytest.mark.parametrize("session", [True, False], ids=["session", "command"])
async def test_what_an_earlier_command_left_cannot_look_into_a_later_one(sandbox: AgentSandbox, session: bool) -> None:
    # It looks at every process that comes, and leaves what it saw in a file.
    spy = f"""
import os, time
{_LOOK}
open("ready", "w").close()
while not os.path.exists("begin"):
    time.sleep(0.01)
seen = {{}}
while not os.path.exists("end"):
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if pid not in (1, os.getpid(), os.getppid()):
            seen.setdefault(pid, []).extend(look(pid))
with open("seen.new", "w") as file:
    print(len(seen), sorted(set(sum(seen.values(), []))), file=file)
os.rename("seen.new", "seen")
"""
    if not sandbox.separates_commands:
        pytest.skip("this kernel has no Landlock")
    await sandbox.write_file(FileSpec("spy.py", spy.encode()), anyio.Event())
    await shell(sandbox, "python3 -I spy.py >/dev/null 2>&1 </dev/null & while [ ! -e ready ]; do sleep 0.01; done")
    if session:
        text = "import time; open('begin', 'w').close(); time.sleep(0.2)"
        await sandbox.run_step(StepSpec("main", SessionLanguage.PYTHON, text), anyio.Event())
    else:
        await shell(sandbox, "touch begin; sleep 0.2; exec true")
    await shell(sandbox, "touch end; while [ ! -e seen ]; do sleep 0.01; done")
    count, _, names = (await shell(sandbox, "cat seen")).partition(" ")
    assert int(count) > 0
    assert names == "[]\n"


async def test_files_move_between_directories_as_before(sandbox: AgentSandbox) -> None:
    code = """
import ctypes, os
os.makedirs("a/inner"); os.makedirs("b")
open("a/file", "w").close()
os.rename("a/file", "b/file"); os.rename("a/inner", "b/inner"); os.link("b/file", "a/link")
unnamed = os.open("a", os.O_TMPFILE | os.O_RDWR)
path = f"/proc/self/fd/{unnamed}".encode()
assert ctypes.CDLL(None).linkat(-100, path, -100, b"b/named", 0x400) == 0
print(sorted(os.listdir("a")), sorted(os.listdir("b")))
"""
    assert await python(sandbox, code) == "['link'] ['file', 'inner', 'named']\n"


async def _while_it_sleeps(sandbox: AgentSandbox, end: Callable[[], None]) -> SandboxLostError:
    """Returns what a command is told whose sandbox something ends."""
    told: list[SandboxLostError] = []

    async def sleep() -> None:
        try:
            await run(sandbox, "sleep", "1000")
        except SandboxLostError as error:
            told.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleep)
        await until_sleepers_are([["sleep", "1000"]])
        end()
    return told[0]


async def test_an_agent_that_dies_under_a_command_is_no_failure_of_the_service(sandbox: AgentSandbox) -> None:
    told = expect(SandboxDiedError, await _while_it_sleeps(sandbox, psutil.Process(sandbox.agent_pid).kill))
    assert (told.kind, told.reason) == (outcome_pb2.FAILURE_KIND_ENV, "state_lost")
    with pytest.raises(SandboxLostError):
        await run(sandbox, "true")


async def test_an_end_of_all_sandboxes_is_one_of_the_service(sandbox: AgentSandbox, settings: SandboxSettings) -> None:
    if settings.isolation is not Isolation.BUBBLEWRAP:
        pytest.skip("an engine starts containers one by one")
    (launcher,) = (each for each in psutil.Process().children() if "isolated" in each.cmdline())
    told = await _while_it_sleeps(sandbox, launcher.kill)
    assert not isinstance(told, SandboxDiedError)
    assert told.kind == outcome_pb2.FAILURE_KIND_INFRA
