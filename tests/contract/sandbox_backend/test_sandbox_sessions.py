"""What every sandbox backend promises of persistent sessions."""

from __future__ import annotations

import signal

import anyio
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.agent_client.sessions import MOST_SESSIONS
from callsheet.managers.sandbox.backend import OutputName, SessionLanguage, SessionUse, StepSpec
from callsheet.managers.sandbox.errors import CannotExecuteError
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.sandbox_steps import GOES_ON, py, sh, stopped_while
from tests.support.sandboxes import (
    shell,
    tells,
)

pytestmark = pytest.mark.anyio


async def test_a_shell_keeps_directory_variables_and_functions(sandbox: AgentSandbox) -> None:
    first = await sh(sandbox, "mkdir inner; cd inner; COLOUR=red; export COLOUR; greet() { echo hello; }")
    assert (first.exit_code, first.session) == (0, SessionUse(started=True, ended=False))
    second = await sh(sandbox, "pwd | sed 's,.*/,,'; env | grep COLOUR; greet")
    assert (second.stdout, second.session) == (b"inner\nCOLOUR=red\nhello\n", GOES_ON)
    assert second.cpu_s >= 0
    assert second.wall_s > 0


async def test_a_python_session_keeps_its_module_and_shows_a_last_expression(sandbox: AgentSandbox) -> None:
    first = await py(sandbox, "import math\nx = 20\ndef twice(n):\n    return 2 * n")
    assert (first.exit_code, first.stdout, first.session) == (0, b"", SessionUse(started=True, ended=False))
    second = await py(sandbox, "print(math.floor(2.5))\ntwice(x) + 2")
    assert (second.stdout, second.session) == (b"2\n42\n", GOES_ON)


async def test_outputs_and_status_are_told_apart(sandbox: AgentSandbox) -> None:
    outcome = await sh(sandbox, "echo out; echo err >&2; (exit 7)")
    assert (outcome.exit_code, outcome.signal, outcome.stdout, outcome.stderr) == (7, 0, b"out\n", b"err\n")
    raised = await py(sandbox, "import sys\nprint('err', file=sys.stderr)\n1 / 0")
    assert raised.exit_code == 1
    assert raised.stderr.startswith(
        b'err\nTraceback (most recent call last):\n  File "<step 1>", line 3, in <module>\n'
    )
    assert raised.stderr.endswith(b"ZeroDivisionError: division by zero\n")


async def test_a_syntax_error_is_a_status_and_no_end(sandbox: AgentSandbox) -> None:
    assert (await sh(sandbox, "x=1")).exit_code == 0
    broken = await sh(sandbox, "if true; then")
    assert (broken.exit_code, broken.session) == (2, GOES_ON)
    assert (await sh(sandbox, "echo $x")).stdout == b"1\n"
    assert (await py(sandbox, "def")).exit_code == 1
    assert (await py(sandbox, "'alive'")).stdout == b"'alive'\n"


async def test_stdin_is_empty(sandbox: AgentSandbox) -> None:
    assert (await sh(sandbox, "cat; read line; echo end")).stdout == b"end\n"
    assert (await py(sandbox, "import sys\nsys.stdin.read()")).stdout == b"''\n"
    assert (await sh(sandbox, "echo alive")).stdout == b"alive\n"


async def test_sessions_are_apart_by_name_and_language(sandbox: AgentSandbox) -> None:
    await sh(sandbox, "x=1", "one")
    await sh(sandbox, "x=2", "two")
    await py(sandbox, "x = 3", "one")
    assert (await sh(sandbox, "echo $x", "one")).stdout == b"1\n"
    assert (await sh(sandbox, "echo $x", "two")).stdout == b"2\n"
    assert (await py(sandbox, "x", "one")).stdout == b"3\n"


async def test_files_are_shared_with_commands(sandbox: AgentSandbox) -> None:
    await sh(sandbox, "echo session > file")
    assert await shell(sandbox, "cat file; echo command > file") == "session\n"
    assert (await py(sandbox, "open('file').read()")).stdout == b"'command\\n'\n"


@pytest.mark.parametrize("text", ["exit 3", "set -e; (exit 3)", "exec sh -c 'exit 3'"])
async def test_a_shell_that_ends_is_followed_by_another(sandbox: AgentSandbox, text: str) -> None:
    await sh(sandbox, "x=1")
    ended = await sh(sandbox, text)
    assert (ended.exit_code, ended.session) == (3, SessionUse(started=False, ended=True))
    again = await sh(sandbox, "echo x$x")
    assert (again.stdout, again.session) == (b"x\n", SessionUse(started=True, ended=False))


async def test_a_python_session_that_ends_is_followed_by_another(sandbox: AgentSandbox) -> None:
    ended = await py(sandbox, "import sys\nprint('last')\nsys.exit(3)")
    assert (ended.exit_code, ended.stdout) == (3, b"last\n")
    assert ended.session == SessionUse(started=True, ended=True)
    killed = await py(sandbox, "import os\nos.kill(os.getpid(), 9)")
    assert (-killed.exit_code, killed.session) == (signal.SIGKILL, SessionUse(started=True, ended=True))
    assert (await py(sandbox, "1")).session == SessionUse(started=True, ended=False)


async def test_a_pause_freezes_sessions_and_keeps_them(sandbox: AgentSandbox) -> None:
    await sh(sandbox, "(while :; do echo x >> ticks; done) 2>/dev/null & echo $! > pid; until [ -s ticks ]; do :; done")
    await sandbox.pause()
    await sandbox.resume()
    assert (await sh(sandbox, "kill $(cat pid) && echo alive")).stdout == b"alive\n"


async def test_output_between_steps_is_dropped(sandbox: AgentSandbox) -> None:
    await sh(sandbox, "(until [ -e go ]; do sleep 0.01; done; head -c 300000 /dev/zero; touch done) &")
    await shell(sandbox, "touch go; until [ -e done ]; do sleep 0.01; done")
    assert (await sh(sandbox, "echo mine")).stdout == b"mine\n"


async def test_head_and_tail_of_a_flood_are_kept(sandbox: AgentSandbox) -> None:
    step = StepSpec("main", SessionLanguage.SHELL, "seq 1000000; echo err >&2", max_output_bytes=1000)
    outcome = await sandbox.run_step(step, anyio.Event())
    assert outcome.stdout.startswith(b"1\n2\n")
    assert outcome.stdout.endswith(b"999999\n1000000\n")
    assert len(outcome.stdout) == 1000
    assert outcome.stdout_dropped == sum(len(f"{n}\n") for n in range(1, 1_000_001)) - 1000
    assert outcome.stderr == b"err\n"


async def test_a_long_text_is_run_whole(sandbox: AgentSandbox) -> None:
    lines = "".join(f": {n:090d}\n" for n in range(5000))
    assert (await sh(sandbox, f"{lines}echo end")).stdout == b"end\n"
    assert (await py(sandbox, f"x = '''{lines}'''\nlen(x)")).stdout == f"{len(lines)}\n".encode()


async def test_any_text_is_taken_as_it_is(sandbox: AgentSandbox) -> None:
    text = "cat <<'end'\n$x `y` \\ \"ü\" '\nend\nprintf '%s' \"a\\tb\""
    assert (await sh(sandbox, text)).stdout == '$x `y` \\ "ü" \'\na\\tb'.encode()


async def test_output_is_told_while_it_comes(sandbox: AgentSandbox) -> None:
    heard: list[tuple[OutputName, bytes]] = []
    first = anyio.Event()

    def listen(stream: OutputName, content: bytes) -> None:
        heard.append((stream, content))
        first.set()

    step = StepSpec("main", SessionLanguage.SHELL, "echo one; until [ -e go ]; do sleep 0.01; done; echo two >&2")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox.run_step, step, anyio.Event(), listen)
        await first.wait()
        assert heard == [(OutputName.STDOUT, b"one\n")]
        await shell(sandbox, "touch go")
    assert heard == [(OutputName.STDOUT, b"one\n"), (OutputName.STDERR, b"two\n")]
    await sh(sandbox, "echo nobody listens any more")
    assert len(heard) == 2


async def test_a_session_can_only_spoil_its_own_step(sandbox: AgentSandbox) -> None:
    forged = await sh(sandbox, "for n in 1 2 3; do echo $RANDOM 0 >&8; done; head -c 200000 /dev/urandom >&8; (exit 5)")
    assert forged.exit_code == 5
    await sh(sandbox, "(while :; do echo 00000000000000000000000000000000 0 >&8; sleep 0.001; done) & echo $! > pid")
    assert (await sh(sandbox, "(exit 6)")).exit_code == 6
    await sh(sandbox, "kill $(cat pid)")
    closed = await stopped_while(sandbox, StepSpec("main", SessionLanguage.SHELL, "exec 8>&-; touch ready"))
    assert closed.session == SessionUse(started=False, ended=True)
    assert (await sh(sandbox, "echo alive")).stdout == b"alive\n"


async def test_children_of_a_python_session_do_not_take_its_steps(sandbox: AgentSandbox) -> None:
    assert (await py(sandbox, "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)")).exit_code == 0
    assert (await py(sandbox, "'alive'")).stdout == b"'alive'\n"


async def test_there_is_a_limit_to_sessions(sandbox: AgentSandbox) -> None:
    for number in range(MOST_SESSIONS):
        await sh(sandbox, "true", str(number))
    with pytest.raises(CannotExecuteError) as caught:
        await sh(sandbox, "true", "another")
    assert caught.value.reason == "too_many_sessions"
    await sh(sandbox, "exit", "0")
    assert (await sh(sandbox, "echo room", "another")).stdout == b"room\n"


async def test_out_of_memory_is_told(sandbox: AgentSandbox, settings: SandboxSettings) -> None:
    outcome = await py(sandbox, "held = [bytearray(1 << 20) for _ in range(1000)]")
    if tells(settings, "memory"):
        assert outcome.out_of_memory
        assert outcome.session == SessionUse(started=True, ended=True)
    elif settings.isolation is Isolation.DOCKER:
        # The engine's groups limit it, and are not read.
        assert outcome.signal == 9
    else:
        assert b"MemoryError" in outcome.stderr


async def test_cpu_seconds_are_the_steps_own(sandbox: AgentSandbox) -> None:
    await py(sandbox, "for _ in range(3_000_000): pass")
    second = await py(sandbox, "1")
    busy = await py(sandbox, "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass")
    assert second.cpu_s < 0.1 < busy.cpu_s


async def test_variables_of_a_step_stay_in_its_session(sandbox: AgentSandbox) -> None:
    values = {"PLAIN": "x", "QUOTED": 'it\'s "$HOME" `x`\nand a line', "EMPTY": ""}
    show = "import os; print([os.environ.get(name) for name in ('PLAIN', 'QUOTED', 'EMPTY')])"
    for language, text in ((SessionLanguage.SHELL, f'python3 -c "{show}"'), (SessionLanguage.PYTHON, show)):
        for environment in (values, {}):
            step = StepSpec("main", language, text, environment=environment)
            outcome = await sandbox.run_step(step, anyio.Event())
            assert outcome.stdout.decode() == f"{list(values.values())}\n", outcome.stderr
        again = StepSpec("main", language, text, environment={"PLAIN": "y"})
        assert b"'y'" in (await sandbox.run_step(again, anyio.Event())).stdout


async def test_a_session_begins_with_variables_of_its_own(sandbox: AgentSandbox) -> None:
    step = StepSpec("main", SessionLanguage.SHELL, "echo $GIVEN", session_environment={"GIVEN": "from the start"})
    assert (await sandbox.run_step(step, anyio.Event())).stdout == b"from the start\n"
    later = StepSpec("main", SessionLanguage.SHELL, "echo $GIVEN", session_environment={"GIVEN": "too late"})
    assert (await sandbox.run_step(later, anyio.Event())).stdout == b"from the start\n"


async def test_a_variable_that_cannot_be_set_ends_no_session(sandbox: AgentSandbox) -> None:
    assert not (await sh(sandbox, "readonly FIXED=1")).failed
    step = StepSpec("main", SessionLanguage.SHELL, "echo $FIXED", environment={"FIXED": "2"})
    outcome = await sandbox.run_step(step, anyio.Event())
    assert (outcome.stdout, outcome.session) == (b"1\n", GOES_ON)
