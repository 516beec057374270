"""What every sandbox backend promises, with and without control groups."""

from __future__ import annotations

import errno
import gzip
import io
import os
import signal
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.managers.sandbox.agent_sandbox import AgentBackend
from callsheet.managers.sandbox.backend import (
    CannotExecuteError,
    CommandSpec,
    FileRefusedError,
    FileSpec,
    Sandbox,
    SandboxCreateError,
    SandboxLostError,
    StoppedError,
)
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings, StageDirectory

from tests.support.sandboxes import (
    Variant,
    open_backend,
    python,
    run,
    running_commands,
    settings_for,
    shell,
    spec_for,
    until_file,
    until_sleepers_are,
    variants,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=variants(Isolation.BUBBLEWRAP, Isolation.NONE), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    variant: Variant = request.param
    stage = tmp_path / "stage"
    stage.mkdir()
    (stage / "staged_module.py").write_text("ANSWER = 42\n")
    return settings_for(variant, tmp_path / "data", (StageDirectory(stage),))


@pytest.fixture
async def backend(settings: SandboxSettings) -> AsyncIterator[AgentBackend]:
    async with open_backend(settings) as opened:
        yield opened


@pytest.fixture
async def sandbox(backend: AgentBackend, settings: SandboxSettings) -> AsyncIterator[Sandbox]:
    made = await backend.create(spec_for(settings), lambda _: None)
    yield made
    await made.destroy()


async def test_a_command_gets_its_arguments_environment_and_stdin(sandbox: Sandbox) -> None:
    script = 'import os, sys; print(sys.argv[1:], os.environ["COLOUR"], sys.stdin.read())'
    outcome = await run(sandbox, "python3", "-c", script, "a b", "ü", environment={"COLOUR": "red"}, stdin=b"input")
    assert outcome.stdout.decode() == "['a b', 'ü'] red input\n"
    assert (outcome.exit_code, outcome.signal, outcome.stderr) == (0, 0, b"")
    assert outcome.wall_s > 0
    assert outcome.cpu_s > 0
    assert outcome.peak_memory_bytes > 1 << 20


async def test_large_stdin_is_read_whole(sandbox: Sandbox) -> None:
    outcome = await run(sandbox, "wc", "-c", stdin=b"x" * 3_000_000)
    assert outcome.stdout.strip() == b"3000000"


async def test_stdin_is_empty_by_default(sandbox: Sandbox) -> None:
    assert (await run(sandbox, "cat")).stdout == b""


async def test_the_managers_environment_is_not_inherited(
    backend: AgentBackend, settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_MANAGER", "x")
    sandbox = await backend.create(spec_for(settings), lambda _: None)
    try:
        assert "SECRET_OF_THE_MANAGER" not in await shell(sandbox, "env")
    finally:
        await sandbox.destroy()


async def test_exit_codes_and_signals_are_told_apart(sandbox: Sandbox) -> None:
    exited = await run(sandbox, "/bin/sh", "-c", "exit 143")
    assert (exited.exit_code, exited.signal) == (143, 0)
    killed = await run(sandbox, "/bin/sh", "-c", "kill -TERM $$")
    assert killed.signal == signal.SIGTERM


async def test_a_program_that_does_not_exist_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(CannotExecuteError, match="no-such-program") as caught:
        await run(sandbox, "no-such-program")
    assert caught.value.reason == "cannot_execute"


async def test_a_working_directory_that_does_not_exist_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(CannotExecuteError) as caught:
        await sandbox.execute(CommandSpec(("true",), working_directory="missing"), anyio.Event())
    assert caught.value.reason == "bad_working_directory"


async def test_a_working_directory_that_leads_out_is_refused(sandbox: Sandbox) -> None:
    await shell(sandbox, "ln -s /usr out && mkdir in && ln -s in inner")
    with pytest.raises(CannotExecuteError):
        await sandbox.execute(CommandSpec(("true",), working_directory="out"), anyio.Event())
    outcome = await sandbox.execute(CommandSpec(("pwd",), working_directory="inner"), anyio.Event())
    assert not outcome.failed


async def test_files_and_background_processes_stay_between_commands(sandbox: Sandbox) -> None:
    await shell(sandbox, "echo state > file; (while [ ! -e stop ]; do sleep 0.01; done; echo done > ended) & ")
    await sandbox.pause()
    await sandbox.resume()
    script = "cat file; touch stop; while [ ! -e ended ]; do sleep 0.01; done; cat ended"
    assert await shell(sandbox, script) == "state\ndone\n"


async def test_output_of_a_background_process_is_dropped_and_does_not_break_it(sandbox: Sandbox) -> None:
    waiting = "while [ ! -e go ]; do sleep 0.01; done; head -c 300000 /dev/zero; echo $? > written"
    first = await run(sandbox, "/bin/sh", "-c", f"echo first; ({waiting}) &")
    assert first.stdout == b"first\n"
    assert await shell(sandbox, "touch go; while [ ! -s written ]; do sleep 0.01; done; cat written") == "0\n"


async def test_head_and_tail_of_a_flood_are_kept(sandbox: Sandbox) -> None:
    command = CommandSpec(
        ("python3", "-c", "import sys; [print(n) for n in range(1_000_000)]; print('e' * 50_000, file=sys.stderr)"),
        max_output_bytes=1000,
    )
    outcome = await sandbox.execute(command, anyio.Event())
    whole = len("".join(f"{n}\n" for n in range(1_000_000)))
    assert outcome.stdout.startswith(b"0\n1\n2\n")
    assert outcome.stdout.endswith(b"999998\n999999\n")
    assert (len(outcome.stdout), outcome.stdout_dropped) == (1000, whole - 1000)
    assert outcome.stderr_dropped == 50_001 - 1000


async def test_a_stop_ends_the_commands_whole_tree(sandbox: Sandbox) -> None:
    stop = anyio.Event()
    script = "echo begun; (setsid sleep 1000 &) ; trap '' TERM INT; touch started; sleep 1000 & wait"
    outcomes = []

    async def execute() -> None:
        outcomes.append(await sandbox.execute(CommandSpec(("/bin/sh", "-c", script)), stop))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(execute)
        await until_file(sandbox, "started")
        stop.set()
    assert outcomes[0].stopped
    assert outcomes[0].signal == signal.SIGKILL
    assert outcomes[0].stdout == b"begun\n"
    await until_sleepers_are([])
    assert await shell(sandbox, "cat started; echo alive") == "alive\n"


async def test_a_stop_spares_earlier_background_processes_where_groups_allow(
    sandbox: Sandbox, settings: SandboxSettings
) -> None:
    await shell(sandbox, "sleep 1000 >/dev/null 2>&1 &")
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox.execute, CommandSpec(("/bin/sh", "-c", "touch started; sleep 2000")), stop)
        await until_file(sandbox, "started")
        stop.set()
    await until_sleepers_are([["sleep", "1000"]] if settings.use_control_groups else [])


async def test_a_stop_before_the_start_runs_nothing(sandbox: Sandbox) -> None:
    stop = anyio.Event()
    stop.set()
    with pytest.raises(StoppedError):
        await sandbox.execute(CommandSpec(("touch", "ran")), stop)
    assert await shell(sandbox, "ls") == ""


async def test_a_stop_reaches_a_paused_command(sandbox: Sandbox) -> None:
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        outcomes = []

        async def execute() -> None:
            outcomes.append(await sandbox.execute(CommandSpec(("sleep", "1000")), stop))

        tasks.start_soon(execute)
        await anyio.sleep(0.05)
        await sandbox.pause()
        stop.set()
    assert outcomes[0].stopped
    await sandbox.resume()
    assert await shell(sandbox, "echo alive") == "alive\n"


async def test_a_paused_command_makes_no_progress(sandbox: Sandbox) -> None:
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox.execute, CommandSpec(("/bin/sh", "-c", "while :; do echo x >> ticks; done")), stop)
        await shell(sandbox, "until [ -s ticks ] && [ $(wc -c < ticks) -gt 20000 ]; do :; done")
        await sandbox.pause()
        before = _cpu_seconds_of("ticks")
        await anyio.sleep(0.2)
        assert _cpu_seconds_of("ticks") == before > 0
        stop.set()


def _cpu_seconds_of(word: str) -> float:
    processes = [process for process, line in running_commands() if any(word in argument for argument in line)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


async def test_commands_run_on_the_granted_cores(sandbox: Sandbox, settings: SandboxSettings) -> None:
    show = "import os; print(sorted(os.sched_getaffinity(0)))"
    for core in sorted(settings.cores)[:2]:
        await sandbox.grant(frozenset({core}))
        assert await python(sandbox, show) == f"[{core}]\n"
    await sandbox.grant(settings.cores)
    assert await python(sandbox, show) == f"{sorted(settings.cores)}\n"


async def test_a_running_command_moves_to_a_new_grant(sandbox: Sandbox, settings: SandboxSettings) -> None:
    core = max(settings.cores)
    script = (
        "import os, time; open('ready', 'w').close()\n"
        f"while os.sched_getaffinity(0) != {{{core}}}: time.sleep(0.005)\n"
        "print('moved')"
    )
    await sandbox.grant(settings.cores)
    if len(settings.cores) == 1:
        pytest.skip("a second core is missing")
    outcomes = []

    async def execute() -> None:
        outcomes.append(await run(sandbox, "python3", "-c", script))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(execute)
        await until_file(sandbox, "ready")
        await sandbox.grant(frozenset({core}))
    assert outcomes[0].stdout == b"moved\n"


async def test_cores_that_do_not_exist_are_an_error(sandbox: Sandbox) -> None:
    with pytest.raises(OSError, check=lambda error: error.errno in {errno.EINVAL, errno.EACCES, errno.ERANGE}):
        await sandbox.grant(frozenset({1000}))


async def test_files_are_written_with_their_mode_and_directories(sandbox: Sandbox) -> None:
    await sandbox.write_file(FileSpec("a/b/run.sh", b"#!/bin/sh\necho ran\n", mode=0o755), anyio.Event())
    await sandbox.write_file(FileSpec("a/b/data", b"one"), anyio.Event())
    await sandbox.write_file(FileSpec("a/b/data", b"two"), anyio.Event())
    assert await shell(sandbox, "a/b/run.sh; cat a/b/data; ls a/b") == "ran\ntwodata\nrun.sh\n"


async def test_a_large_file_arrives_whole(sandbox: Sandbox) -> None:
    await sandbox.write_file(FileSpec("large", bytes(5_000_000)), anyio.Event())
    assert await shell(sandbox, "wc -c < large") == "5000000\n"


async def test_a_file_replaces_a_link_instead_of_following_it(sandbox: Sandbox) -> None:
    await shell(sandbox, "echo kept > target; ln -s target link")
    await sandbox.write_file(FileSpec("link", b"new"), anyio.Event())
    assert await shell(sandbox, "cat target link; test ! -L link") == "kept\nnew"


async def test_a_path_through_a_link_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    await shell(sandbox, f"ln -s {tmp_path} out; ln -s /tmp away")
    for path in ("out/file", "away/file"):
        with pytest.raises(FileRefusedError) as caught:
            await sandbox.write_file(FileSpec(path, b"x"), anyio.Event())
        assert caught.value.reason == "bad_path"
    assert not (tmp_path / "file").exists()


def _archive(*members: tarfile.TarInfo, content: bytes = b"content") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return buffer.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, mode
    return member


@pytest.mark.parametrize("compress", [False, True])
async def test_archives_are_unpacked(sandbox: Sandbox, compress: bool) -> None:
    content = _archive(
        _member("pkg", tarfile.DIRTYPE, mode=0o755),
        _member("pkg/run", mode=0o4755),
        _member("pkg/alias", tarfile.SYMTYPE, "run"),
        _member("pkg/same", tarfile.LNKTYPE, "pkg/run"),
    )
    archive = FileSpec("into", gzip.compress(content) if compress else content, unpack=True)
    await sandbox.write_file(archive, anyio.Event())
    listing = await shell(sandbox, "cd into/pkg; stat -c '%n %a %F' *; cat alias same")
    assert listing.splitlines() == [
        "alias 777 symbolic link",
        "run 755 regular file",
        "same 755 regular file",
        "contentcontent",
    ]


@pytest.mark.parametrize(
    "member",
    [
        _member("/absolute"),
        _member("../climbs"),
        _member("a/../../climbs"),
        _member("link", tarfile.SYMTYPE, "/etc/passwd"),
        _member("link", tarfile.SYMTYPE, "../../outside"),
        _member("link", tarfile.LNKTYPE, "../outside"),
        _member("device", tarfile.CHRTYPE),
        _member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.linkname}".strip("-").replace("/", "_"),
)
async def test_dangerous_archive_members_are_refused(sandbox: Sandbox, member: tarfile.TarInfo) -> None:
    with pytest.raises(FileRefusedError):
        await sandbox.write_file(FileSpec("", _archive(member), unpack=True), anyio.Event())


async def test_an_archive_cannot_write_through_its_own_link(sandbox: Sandbox) -> None:
    content = _archive(_member("here", tarfile.SYMTYPE, "."), _member("here/file"))
    with pytest.raises(FileRefusedError):
        await sandbox.write_file(FileSpec("", content, unpack=True), anyio.Event())


async def test_what_is_no_archive_is_refused(sandbox: Sandbox) -> None:
    for content in (b"no archive" * 100, gzip.compress(b"no archive" * 100), b"\x1f\x8b broken"):
        with pytest.raises(FileRefusedError) as caught:
            await sandbox.write_file(FileSpec("", content, unpack=True), anyio.Event())
        assert caught.value.reason == "bad_archive"


async def test_staged_packages_are_found_and_cannot_be_changed(sandbox: Sandbox) -> None:
    assert (await run(sandbox, "python3", "-c", "import staged_module; print(staged_module.ANSWER)")).stdout == b"42\n"


async def test_an_added_python_path_keeps_the_staged_packages(sandbox: Sandbox) -> None:
    await sandbox.write_file(FileSpec("src/own_module.py", b"import staged_module"), anyio.Event())
    outcome = await run(sandbox, "python3", "-c", "import own_module", environment={"PYTHONPATH": "src"})
    assert not outcome.failed, outcome.stderr


async def test_temporary_files_can_be_read_back(sandbox: Sandbox) -> None:
    path = sandbox.temporary_path("report.xml")
    await shell(sandbox, f"echo content > {path}; mkfifo {path}.pipe; ln -s {path} {path}.link")
    assert await sandbox.read_temporary("report.xml", 100) == b"content\n"
    assert await sandbox.read_temporary("report.xml", 3) is None
    for name in ("missing.xml", "report.xml.pipe", "report.xml.link"):
        assert await sandbox.read_temporary(name, 100) is None


async def test_kill_ends_background_processes_and_keeps_files(sandbox: Sandbox) -> None:
    script = "echo state > file; (while :; do date +%N > beat; sleep 0.01; done) >/dev/null 2>&1 &"
    await shell(sandbox, script)
    await sandbox.kill()
    assert await shell(sandbox, 'cat file; a=$(cat beat); sleep 0.1; test "$a" = "$(cat beat)"') == "state\n"


async def test_sandboxes_do_not_share_files(backend: AgentBackend, settings: SandboxSettings) -> None:
    first = await backend.create(spec_for(settings, "first"), lambda _: None)
    second = await backend.create(spec_for(settings, "second"), lambda _: None)
    try:
        await shell(first, "echo secret > file; echo secret > $TMPDIR/file")
        assert await shell(second, "ls; ls $TMPDIR") == ""
    finally:
        await first.destroy()
        await second.destroy()


async def test_a_destroyed_sandbox_is_gone(sandbox: Sandbox, settings: SandboxSettings) -> None:
    await shell(sandbox, "echo x > file; (setsid sleep 1000 >/dev/null 2>&1 &)")
    await sandbox.destroy()
    await sandbox.destroy()
    with pytest.raises(SandboxLostError):
        await run(sandbox, "true")
    await until_sleepers_are([])
    assert [path for path in settings.data_directory.rglob("*") if path.is_dir() and path.name == "one"] == []


async def test_destroying_ends_a_running_command(sandbox: Sandbox) -> None:
    with pytest.RaisesGroup(SandboxLostError):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, sandbox, "sleep", "1000")
            await anyio.sleep(0.05)
            await sandbox.destroy()


async def test_a_cancelled_command_is_killed(sandbox: Sandbox) -> None:
    with anyio.move_on_after(0.3):
        await sandbox.execute(CommandSpec(("/bin/sh", "-c", "while :; do echo x >> ticks; done")), anyio.Event())
    before = await shell(sandbox, "wc -c < ticks")
    assert await shell(sandbox, "sleep 0.1; wc -c < ticks") == before


async def test_the_loss_of_the_first_process_is_told(backend: AgentBackend, settings: SandboxSettings) -> None:
    told: list[str] = []
    lost = anyio.Event()

    def on_lost(reason: str) -> None:
        told.append(reason)
        lost.set()

    sandbox = await backend.create(spec_for(settings), on_lost)
    try:
        os.kill(sandbox.agent_pid, signal.SIGKILL)
        with anyio.fail_after(10):
            await lost.wait()
        assert sandbox.loss is not None
        with pytest.raises(SandboxLostError):
            await run(sandbox, "true")
    finally:
        await sandbox.destroy()
    assert len(told) == 1


async def test_after_the_loss_of_the_launcher_new_sandboxes_can_be_made(
    backend: AgentBackend, settings: SandboxSettings
) -> None:
    first = await backend.create(spec_for(settings, "first"), lambda _: None)
    await first.destroy()
    launchers = [child for child in psutil.Process().children() if "sandbox/launcher" in " ".join(child.cmdline())]
    assert len(launchers) == 1
    launchers[0].kill()
    # Its end is told by its socket; until then a new sandbox is refused, which the scheduler's retry would repeat.
    with anyio.fail_after(10):
        second = None
        while second is None:
            try:
                second = await backend.create(spec_for(settings, "second"), lambda _: None)
            except SandboxCreateError:
                await anyio.sleep(0.01)
    try:
        assert await shell(second, "echo alive") == "alive\n"
    finally:
        await second.destroy()


async def test_capabilities_are_words(backend: AgentBackend, settings: SandboxSettings) -> None:
    capabilities = backend.capabilities()
    assert capabilities["isolation"] == settings.isolation.value
    assert {"cpu", "memory", "processes", "network", "filesystem", "stop", "idle"} <= set(capabilities)
    assert all(capabilities.values())
