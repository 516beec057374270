"""What every sandbox backend promises of commands, with and without control groups."""

from __future__ import annotations

import errno
import signal
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandSpec
from callsheet.managers.sandbox.errors import CannotExecuteError, StoppedError
from callsheet.managers.sandbox.settings import SandboxSettings

from tests.support.sandboxes import (
    open_sandbox,
    python,
    run,
    running_commands,
    shell,
    until_file,
    until_sleepers_are,
    until_still,
)


async def test_a_command_gets_its_arguments_environment_and_stdin(sandbox: AgentSandbox) -> None:
    script = 'import os, sys; print(sys.argv[1:], os.environ["COLOUR"], sys.stdin.read())'
    outcome = await run(sandbox, "python3", "-c", script, "a b", "ü", environment={"COLOUR": "red"}, stdin=b"input")
    assert outcome.stdout.decode() == "['a b', 'ü'] red input\n"
    assert (outcome.exit_code, outcome.signal, outcome.stderr) == (0, 0, b"")
    assert outcome.wall_s > 0
    assert outcome.cpu_s > 0
    assert outcome.peak_memory_bytes > 1 << 20


async def test_large_stdin_is_read_whole(sandbox: AgentSandbox) -> None:
    assert (await run(sandbox, "wc", "-c", stdin=b"x" * 3_000_000)).stdout.strip() == b"3000000"


async def test_stdin_is_empty_by_default(sandbox: AgentSandbox) -> None:
    assert (await run(sandbox, "cat")).stdout == b""


async def test_the_managers_environment_is_not_inherited(
    settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_MANAGER", "x")
    async with open_sandbox(replace(settings, data_directory=tmp_path)) as sandbox:
        assert "SECRET_OF_THE_MANAGER" not in await shell(sandbox, "env")


async def test_exit_codes_and_signals_are_told_apart(sandbox: AgentSandbox) -> None:
    exited = await run(sandbox, "/bin/sh", "-c", "exit 143")
    assert (exited.exit_code, exited.signal) == (143, 0)
    for number in (signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL):
        killed = await run(sandbox, "/bin/sh", "-c", f"kill -{number} $$")
        assert (killed.exit_code, killed.signal, killed.failed) == (-number, number, True)


async def test_a_program_that_does_not_exist_is_refused(sandbox: AgentSandbox) -> None:
    with pytest.raises(CannotExecuteError, match="no-such-program") as caught:
        await run(sandbox, "no-such-program")
    assert caught.value.reason == "no_such_program"


async def test_a_program_is_looked_for_in_all_of_its_path(sandbox: AgentSandbox) -> None:
    await shell(sandbox, "mkdir first second && touch first/tool && printf '#!/bin/sh\necho found' > second/tool")
    await shell(sandbox, "chmod +x second/tool")
    with pytest.raises(CannotExecuteError, match="Permission denied"):
        await run(sandbox, "tool", environment={"PATH": "first:missing"})
    assert (await run(sandbox, "tool", environment={"PATH": "first:missing:second"})).stdout == b"found\n"
    # What looks as if it could be executed and cannot be.
    await shell(sandbox, "mkdir -p third/tool fourth && echo echo > fourth/tool && chmod +x fourth/tool")
    assert (await run(sandbox, "tool", environment={"PATH": "third:fourth:second"})).stdout == b"found\n"
    with pytest.raises(CannotExecuteError, match="Exec format error"):
        await run(sandbox, "tool", environment={"PATH": "fourth:missing"})


@pytest.mark.parametrize(
    "command",
    [
        CommandSpec(("echo", "\ud800")),
        CommandSpec(("\ud800",)),
        CommandSpec(("true",), environment={"X": "\ud800"}),
        CommandSpec(("true",), working_directory="\ud800"),
    ],
    ids=["argument", "program", "variable", "directory"],
)
async def test_a_text_that_has_no_bytes_costs_no_sandbox(sandbox: AgentSandbox, command: CommandSpec) -> None:
    with pytest.raises(CannotExecuteError) as caught:
        await sandbox.execute(command, anyio.Event())
    assert caught.value.reason == "cannot_execute"
    assert await shell(sandbox, "echo alive") == "alive\n"


async def test_a_working_directory_that_does_not_exist_is_refused(sandbox: AgentSandbox) -> None:
    with pytest.raises(CannotExecuteError) as caught:
        await sandbox.execute(CommandSpec(("true",), working_directory="missing"), anyio.Event())
    assert caught.value.reason == "bad_working_directory"


async def test_a_working_directory_that_leads_out_is_refused(sandbox: AgentSandbox) -> None:
    await shell(sandbox, "ln -s /usr out && mkdir in && ln -s in inner")
    with pytest.raises(CannotExecuteError):
        await sandbox.execute(CommandSpec(("true",), working_directory="out"), anyio.Event())
    assert not (await sandbox.execute(CommandSpec(("pwd",), working_directory="inner"), anyio.Event())).failed


async def test_files_and_background_processes_stay_between_commands(sandbox: AgentSandbox) -> None:
    await shell(sandbox, "echo state > file; (while [ ! -e stop ]; do sleep 0.01; done; echo done > ended) & ")
    await sandbox.pause()
    await sandbox.resume()
    script = "cat file; touch stop; while [ ! -e ended ]; do sleep 0.01; done; cat ended"
    assert await shell(sandbox, script) == "state\ndone\n"


async def test_output_of_a_background_process_is_dropped_and_does_not_break_it(sandbox: AgentSandbox) -> None:
    waiting = "while [ ! -e go ]; do sleep 0.01; done; head -c 300000 /dev/zero; echo $? > written"
    assert (await run(sandbox, "/bin/sh", "-c", f"echo first; ({waiting}) &")).stdout == b"first\n"
    assert await shell(sandbox, "touch go; while [ ! -s written ]; do sleep 0.01; done; cat written") == "0\n"


async def test_head_and_tail_of_a_flood_are_kept(sandbox: AgentSandbox) -> None:
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


async def test_a_stop_ends_the_commands_whole_tree(sandbox: AgentSandbox) -> None:
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
    sandbox: AgentSandbox, settings: SandboxSettings
) -> None:
    await shell(sandbox, "sleep 1000 >/dev/null 2>&1 &")
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox.execute, CommandSpec(("/bin/sh", "-c", "touch started; sleep 2000")), stop)
        await until_file(sandbox, "started")
        stop.set()
    await until_sleepers_are([["sleep", "1000"]] if settings.use_control_groups else [])


async def test_a_stop_before_the_start_runs_nothing(sandbox: AgentSandbox) -> None:
    stop = anyio.Event()
    stop.set()
    with pytest.raises(StoppedError):
        await sandbox.execute(CommandSpec(("touch", "ran")), stop)
    assert await shell(sandbox, "ls") == ""


async def test_a_stop_reaches_a_paused_command(sandbox: AgentSandbox) -> None:
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        outcomes = []

        async def execute() -> None:
            outcomes.append(await sandbox.execute(CommandSpec(("sleep", "1000")), stop))

        tasks.start_soon(execute)
        await until_sleepers_are([["sleep", "1000"]])
        await sandbox.pause()
        stop.set()
    assert outcomes[0].stopped
    await sandbox.resume()
    assert await shell(sandbox, "echo alive") == "alive\n"


async def test_a_paused_command_makes_no_progress(sandbox: AgentSandbox) -> None:
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox.execute, CommandSpec(("/bin/sh", "-c", "while :; do echo x >> ticks; done")), stop)
        await shell(sandbox, "until [ -s ticks ] && [ $(wc -c < ticks) -gt 20000 ]; do :; done")
        await sandbox.pause()
        await until_still(lambda: _cpu_seconds_of("ticks"))
        assert _cpu_seconds_of("ticks") > 0
        stop.set()


def _cpu_seconds_of(word: str) -> float:
    processes = [process for process, line in running_commands() if any(word in argument for argument in line)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


async def test_commands_run_on_the_granted_cores(sandbox: AgentSandbox, settings: SandboxSettings) -> None:
    show = "import os; print(sorted(os.sched_getaffinity(0)))"
    for core in sorted(settings.cores)[:2]:
        await sandbox.grant(frozenset({core}))
        assert await python(sandbox, show) == f"[{core}]\n"
    await sandbox.grant(settings.cores)
    assert await python(sandbox, show) == f"{sorted(settings.cores)}\n"


async def test_a_running_command_moves_to_a_new_grant(sandbox: AgentSandbox, settings: SandboxSettings) -> None:
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


async def test_cores_that_do_not_exist_are_an_error(sandbox: AgentSandbox) -> None:
    with pytest.raises(OSError, check=lambda error: error.errno in {errno.EINVAL, errno.EACCES, errno.ERANGE}):
        await sandbox.grant(frozenset({1000}))


async def test_a_cancelled_command_is_killed(sandbox: AgentSandbox) -> None:
    command = CommandSpec(("/bin/sh", "-c", "while :; do echo x >> ticks; done"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox.execute, command, anyio.Event())
        await until_file(sandbox, "ticks")
        tasks.cancel_scope.cancel()
    before = await shell(sandbox, "wc -c < ticks")
    assert await shell(sandbox, "sleep 0.1; wc -c < ticks") == before
