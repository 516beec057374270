"""The same client, the same calls: the facade answers as SWE-ReX's own server does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SwerexException,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from swerex.runtime.remote import RemoteRuntime

from tests.support.swerex_servers import facade_process, reference_server, runtime_at, stack_of_sandboxes, until_alive

pytestmark = pytest.mark.anyio

# Steps of one session, and what SWE-ReX 1.4 answers, less the ends of lines that its terminal adds. Recorded, as a
# terminal on a busy machine answers now this, now that.
STEPS = [
    ("echo hi", "hi", 0),
    ("mkdir -p inner; cd inner; pwd | sed 's,.*/,,'", "inner", 0),
    ("pwd | sed 's,.*/,,'", "inner", 0),
    ("x=3; export y=4", "", 0),
    ("echo $x; env | grep ^y=", "3\ny=4", 0),
    ("printf abc", "abc", 0),
    ("echo a; echo b >&2; echo c", "a\nb\nc", 0),
    ("f() { echo in $1; }\nf 1\nf 2", "in 1\nin 2", 0),
    ("f 3", "in 3", 0),
    ("cat <<EOF\n$x\nEOF", "3", 0),
    ("(exit 3)", "", 3),
    ("false && true", "", 1),
    ("", "", 0),
    ("# nothing", "", 0),
    ("printf '\\033[31mred\\033[0m\\n'", "red", 0),
    ("echo 'ü'; printf '\\xff\\n'", "ü\n\\xff", 0),
    ("for i in 1 2; do\necho $i\ndone", "1\n2", 0),
    ("alias twice='echo twice'", "", 0),
    ("twice", "twice", 0),
    ('echo "it\'s" \'a "quote"\' \\\n  and a line', 'it\'s a "quote" and a line', 0),
]
COMMANDS = [
    Command(command=["echo", "a b"]),
    Command(command="echo out; echo err >&2; exit 3", shell=True),
    Command(command="echo out; echo err >&2", shell=True, merge_output_streams=True),
    Command(command=["env"], env={"A": "b c"}),
    Command(command="echo $A", shell=True, env={"A": "b c"}),
    Command(command=["pwd"], cwd="/usr"),
    Command(command="pwd; echo err >&2", shell=True, cwd="/", merge_output_streams=True),
    Command(command="true"),
    Command(command=["sh", "-c", "kill -9 $$"]),
    Command(command=["cat"]),
    Command(command=["printf", "\\377"]),
    Command(command=["no-such-program"]),
    Command(command=["true"], cwd="/no/such/directory"),
    Command(command=["false"], check=True, error_msg="it said no"),
    Command(command=["sleep", "60"], timeout=0.3),
]
# Likewise what a session raises.
REFUSED = [
    (BashAction(command="if true; then", check="silent"), BashIncorrectSyntaxError),
    (BashAction(command="echo )", check="ignore"), BashIncorrectSyntaxError),
    (BashAction(command="echo out; (exit 4)"), NonZeroExitCodeError),
    (BashAction(command="(exit 4)", error_msg="it said no"), NonZeroExitCodeError),
    (BashAction(command="true", session="another"), SessionDoesNotExistError),
]


@pytest.fixture(scope="module")
async def runtimes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[RemoteRuntime, RemoteRuntime]]:
    """The facade's and the reference."""
    async with (
        reference_server(tmp_path_factory.mktemp("reference")) as reference,
        stack_of_sandboxes(tmp_path_factory.mktemp("stack")) as stack,
        facade_process(stack.address) as facade,
    ):
        ours = runtime_at(facade.facts["address"])
        await until_alive(ours)
        yield ours, runtime_at(reference)


async def told(call: Awaitable[BaseModel]) -> dict[str, Any] | str:
    """What a call returns, or the class of what it raises."""
    try:
        answer = (await call).model_dump()
    except (SwerexException, OSError, ValueError) as error:
        return f"{type(error).__module__}.{type(error).__name__}"
    answer.pop("output", None)  # of a terminal that the reference has begun
    return answer


async def test_steps_of_a_session(runtimes: tuple[RemoteRuntime, RemoteRuntime]) -> None:
    ours, _ = runtimes
    await ours.create_session(CreateBashSessionRequest(session="steps", startup_timeout=60))
    answers = []
    for text, _, _ in STEPS:
        action = BashAction(command=text, session="steps", check="silent", timeout=30)
        answer = await ours.run_in_session(action)
        answers.append((text, answer.output.strip(), answer.exit_code))
    assert answers == STEPS
    await ours.close_session(CloseBashSessionRequest(session="steps"))


@pytest.mark.parametrize(("action", "error"), REFUSED, ids=lambda given: getattr(given, "command", ""))
async def test_what_a_session_refuses(
    runtimes: tuple[RemoteRuntime, RemoteRuntime], action: BashAction, error: type[SwerexException]
) -> None:
    ours, _ = runtimes
    await ours.create_session(CreateBashSessionRequest(startup_timeout=60))
    try:
        with pytest.raises(error) as caught:
            await ours.run_in_session(action)
        assert str(caught.value).startswith(action.error_msg)
        if error is BashIncorrectSyntaxError:
            assert "syntax error" in caught.value.extra_info["bash_stderr"]  # type: ignore[attr-defined]
    finally:
        await ours.close_session(CloseBashSessionRequest())


async def test_a_session_that_is_there_or_not(runtimes: tuple[RemoteRuntime, RemoteRuntime]) -> None:
    answers = []
    for runtime in runtimes:
        request = CreateBashSessionRequest(session="once", startup_timeout=60)
        await runtime.create_session(request)
        answers.append(
            [
                await told(runtime.create_session(request)),
                await told(runtime.close_session(CloseBashSessionRequest(session="once"))),
                await told(runtime.close_session(CloseBashSessionRequest(session="once"))),
                await told(runtime.run_in_session(BashInterruptAction(session="once"))),
            ]
        )
    assert answers[0] == answers[1]
    assert answers[0][0] == "swerex.exceptions.SessionExistsError"


async def test_a_step_that_times_out_is_interrupted_and_its_session_goes_on(
    runtimes: tuple[RemoteRuntime, RemoteRuntime],
) -> None:
    ours, _ = runtimes
    await ours.create_session(CreateBashSessionRequest(session="slow", startup_timeout=60))
    # On a busy machine a second may be over before the step has begun.
    for limit_s in (1.0, 5.0, 25.0):
        step = BashAction(command="y=1; echo begun; sleep 60; echo no", session="slow", timeout=limit_s)
        with pytest.raises(CommandTimeoutError, match=rf"timeout after {limit_s} seconds while running command 'y=1"):
            await ours.run_in_session(step)
        interrupted = await ours.run_in_session(BashInterruptAction(session="slow"))
        assert interrupted.exit_code == 0
        if interrupted.output:
            break
    assert interrupted.output.startswith("begun")
    after = await ours.run_in_session(BashAction(command="echo $y", session="slow", timeout=30))
    assert after.output == "1\n"
    await ours.close_session(CloseBashSessionRequest(session="slow"))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.command))
async def test_programs(runtimes: tuple[RemoteRuntime, RemoteRuntime], command: Command) -> None:
    ours, reference = runtimes
    assert await told(ours.execute(command)) == await told(reference.execute(command))


async def test_files(runtimes: tuple[RemoteRuntime, RemoteRuntime], tmp_path: Path) -> None:
    place = f"/tmp/{tmp_path.name}"
    answers = []
    for runtime in runtimes:
        try:
            answers.append(
                [
                    await told(runtime.write_file(WriteFileRequest(path="a/b c.txt", content="hällo\r\nx"))),
                    await told(runtime.read_file(ReadFileRequest(path="a/b c.txt"))),
                    await told(runtime.read_file(ReadFileRequest(path="a/b c.txt", encoding="latin-1"))),
                    await told(runtime.read_file(ReadFileRequest(path="a/b c.txt", encoding="ascii", errors="ignore"))),
                    await told(runtime.read_file(ReadFileRequest(path="a"))),
                    await told(runtime.read_file(ReadFileRequest(path="no/such/file"))),
                    await told(runtime.read_file(ReadFileRequest(path="a", encoding="no-such-encoding"))),
                    await told(runtime.write_file(WriteFileRequest(path="a", content=""))),
                    await told(runtime.write_file(WriteFileRequest(path=f"{place}/deep/file", content=""))),
                    await told(runtime.read_file(ReadFileRequest(path=f"{place}/deep/file"))),
                ]
            )
        finally:
            await runtime.execute(Command(command=["rm", "-r", place]))
    assert answers[0] == answers[1]


async def test_uploads(runtimes: tuple[RemoteRuntime, RemoteRuntime], tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "bin").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "bin" / "tool").write_text("#!/bin/sh\necho ran\n")
    (source / "bin" / "tool").chmod(0o755)
    (source / "data").write_bytes(bytes(range(256)) * 2000)
    answers = []
    for runtime in runtimes:
        await runtime.upload(UploadRequest(source_path=str(source), target_path="uploaded/tree"))
        await runtime.upload(UploadRequest(source_path=str(source / "data"), target_path="uploaded/one/data"))
        listing = "cd uploaded && find . | sort && sha256sum tree/data one/data && sh tree/bin/tool"
        answers.append(await told(runtime.execute(Command(command=listing, shell=True, check=True))))
    assert answers[0] == answers[1]
    assert (await runtimes[0].execute(Command(command=["uploaded/tree/bin/tool"]))).stdout == "ran\n"
