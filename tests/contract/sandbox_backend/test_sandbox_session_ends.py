"""How steps of sessions are stopped, cancelled and lost, and what is left of them."""

from __future__ import annotations

import signal

import anyio
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandSpec, SessionLanguage, SessionUse, StepSpec
from callsheet.managers.sandbox.errors import SandboxLostError, StoppedError
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.sandbox_steps import GOES_ON, py, sh, stopped_while
from tests.support.sandboxes import (
    ANSWER_SECONDS,
    Variant,
    shell,
    until_file,
    until_sleepers_are,
    variants,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "text",
    [
        "sleep 1000; sleep 1000; echo no",
        "while :; do sleep 1000; done",
        "while :; do :; done",
        "f() { g; sleep 1000; }; g() { sleep 1000; }; f; sleep 1000",
        "trap '' INT TERM; sleep 1000; sleep 1000",
        "y=$(sleep 1000); sleep 1000",
        "sleep 1000 | cat",
        "wait_for() { wait; }; sleep 1000 & wait_for",
        "mkfifo fifo; read line < fifo",
    ],
)
async def test_a_stopped_step_ends_and_its_shell_stays(sandbox: AgentSandbox, text: str) -> None:
    await sh(sandbox, "cd /; cd -; x=1")
    outcome = await stopped_while(sandbox, StepSpec("main", SessionLanguage.SHELL, f"echo begun; touch ready; {text}"))
    assert outcome.stopped
    assert outcome.stdout == b"begun\n"
    assert outcome.session == GOES_ON
    await until_sleepers_are([])
    after = await sh(sandbox, "echo $x")
    assert (after.stdout, after.session) == (b"1\n", GOES_ON)


async def test_a_stopped_step_of_python_ends_and_its_session_stays(sandbox: AgentSandbox) -> None:
    await py(sandbox, "x = 1")
    waits = "subprocess.run(['sleep', '1000'])\ntime.sleep(1000)"
    text = f"import subprocess, time\nprint('begun')\nopen('ready', 'w')\n{waits}"
    outcome = await stopped_while(sandbox, StepSpec("main", SessionLanguage.PYTHON, text))
    assert (outcome.stopped, outcome.stdout, outcome.session) == (True, b"begun\n", GOES_ON)
    assert (await py(sandbox, "x")).stdout == b"1\n"


@pytest.mark.parametrize(
    ("language", "text"),
    [
        (SessionLanguage.SHELL, "trap '' USR1; touch ready; while :; do :; done"),
        (
            SessionLanguage.PYTHON,
            "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\nopen('ready', 'w')\nwhile True: pass",
        ),
    ],
)
async def test_a_session_that_does_not_return_is_killed(
    sandbox: AgentSandbox, language: SessionLanguage, text: str
) -> None:
    outcome = await stopped_while(sandbox, StepSpec("main", language, text))
    assert (outcome.stopped, outcome.signal) == (True, signal.SIGKILL)
    assert outcome.session == SessionUse(started=True, ended=True)
    assert await shell(sandbox, "echo alive") == "alive\n"


async def test_a_stop_reaches_a_paused_step(sandbox: AgentSandbox) -> None:
    stop = anyio.Event()
    outcomes = []

    async def run() -> None:
        outcomes.append(await sh(sandbox, "touch ready; while :; do :; done", stop=stop))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until_file(sandbox, "ready")
        await sandbox.pause()
        stop.set()
    assert outcomes[0].session == SessionUse(started=True, ended=True)
    await sandbox.resume()
    assert (await sh(sandbox, "echo alive")).stdout == b"alive\n"


async def test_a_stop_before_the_start_runs_nothing(sandbox: AgentSandbox) -> None:
    stop = anyio.Event()
    stop.set()
    with pytest.raises(StoppedError):
        await sh(sandbox, "touch ran", stop=stop)
    assert await shell(sandbox, "ls") == ""


async def test_earlier_background_processes_of_a_session_survive_a_stopped_step(sandbox: AgentSandbox) -> None:
    await sh(sandbox, "sleep 1234 &")
    # A process that began within the clock tick of the step's own beginning cannot be told from the step's.
    await anyio.sleep(0.05)
    await stopped_while(sandbox, StepSpec("main", SessionLanguage.SHELL, "touch ready; sleep 1000"))
    await until_sleepers_are([["sleep", "1234"]])


async def test_a_stop_of_a_command_spares_sessions_where_groups_allow(
    sandbox: AgentSandbox, settings: SandboxSettings
) -> None:
    await sh(sandbox, "x=1")
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox.execute, CommandSpec(("/bin/sh", "-c", "touch ready; sleep 1000")), stop)
        await until_file(sandbox, "ready")
        stop.set()
    after = await sh(sandbox, "echo x$x")
    if settings.use_control_groups:
        assert (after.stdout, after.session) == (b"x1\n", GOES_ON)
    else:
        assert (after.stdout, after.session) == (b"x\n", SessionUse(started=True, ended=False))


# Not plain processes without groups: nothing bounds their number, so a storm would harm this machine.
@pytest.mark.parametrize(
    "settings",
    [each for each in variants(*Isolation) if str(each) != str(Variant(Isolation.NONE, groups=False))],
    ids=str,
    indirect=True,
)
@pytest.mark.parametrize(
    ("language", "text"),
    [
        (SessionLanguage.SHELL, "while :; do sleep 1000 & done"),
        (SessionLanguage.SHELL, "bomb() { bomb | bomb & }; bomb; sleep 1000"),
        (SessionLanguage.PYTHON, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
    ],
)
async def test_a_stop_leaves_nothing_that_the_step_started(
    sandbox: AgentSandbox, language: SessionLanguage, text: str
) -> None:
    begun = "echo begun\n" if language is SessionLanguage.SHELL else "print('begun')\n"
    await sh(sandbox, "true", "another")
    stop, outcomes = anyio.Event(), []

    async def run() -> None:
        step = StepSpec("main", language, begun + text)
        outcomes.append(await sandbox.run_step(step, stop, lambda *_: heard.set()))

    with anyio.fail_after(ANSWER_SECONDS):
        heard = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            # Heard of by its output: no other process may be let in now.
            await heard.wait()
            await anyio.sleep(0.2)
            stop.set()
    assert outcomes[0].stopped
    await until_sleepers_are([])
    assert (await sh(sandbox, "echo alive", "another")).stdout == b"alive\n"


async def test_destroying_ends_a_running_step(sandbox: AgentSandbox) -> None:
    step = StepSpec("main", SessionLanguage.SHELL, "touch ready; while :; do :; done")
    lost = []

    async def run() -> None:
        with pytest.raises(SandboxLostError):
            await sandbox.run_step(step, anyio.Event())
        lost.append(True)

    with anyio.fail_after(ANSWER_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until_file(sandbox, "ready")
            await sandbox.destroy()
    assert lost == [True]
    with pytest.raises(SandboxLostError):
        await sh(sandbox, "true")


async def test_a_long_text_that_nobody_reads_ends_with_the_sandbox(sandbox: AgentSandbox) -> None:
    await sh(sandbox, "true")
    await sandbox.pause()
    text = f": {'x' * 300_000}"
    with anyio.fail_after(ANSWER_SECONDS):
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                with pytest.raises(SandboxLostError):
                    await sh(sandbox, text)

            tasks.start_soon(run)
            await anyio.sleep(0.2)
            await sandbox.destroy()


async def test_a_cancelled_step_is_ended(sandbox: AgentSandbox) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sh, sandbox, "x=1; while :; do echo x >> ticks; done")
        await until_file(sandbox, "ticks")
        tasks.cancel_scope.cancel()
    before = await shell(sandbox, "wc -c < ticks")
    assert await shell(sandbox, "sleep 0.1; wc -c < ticks") == before
    assert (await sh(sandbox, "echo $x")).stdout == b"1\n"
