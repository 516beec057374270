"""`run_code` of the E2B facade with a real stack, by requests as e2b_code_interpreter sends them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anyio
import pytest

from tests.support.e2b_servers import CalledSandbox, E2bCaller, e2b_process
from tests.support.real_sandboxes import processes
from tests.support.swerex_servers import stack_of_sandboxes
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with (
        stack_of_sandboxes(tmp_path_factory.mktemp("stack")) as stack,
        e2b_process(stack.address) as facade,
    ):
        yield facade.facts["address"]


@pytest.fixture
async def sandbox(address: str) -> AsyncIterator[CalledSandbox]:
    async with aiohttp.ClientSession() as session:
        caller = E2bCaller(session, address)
        made = await caller.create(templateID="code-interpreter-v1", envVars={"OWN": "of all"})
        yield made
        await caller.rest("DELETE", f"/sandboxes/{made.sandbox_id}")


async def execute(sandbox: CalledSandbox, code: str, **asked: Any) -> list[dict[str, Any]]:
    """Returns what comes of code, without times."""
    body = {"code": code, "context_id": None, "language": None, "env_vars": None, **asked}
    status, content = await sandbox.plain("POST", "/execute", json=body)
    assert status == 200, content
    events = [json.loads(line) for line in content.splitlines()]
    return [{name: value for name, value in event.items() if name != "timestamp"} for event in events]


async def test_variables_stay_from_one_execution_to_the_next(sandbox: CalledSandbox) -> None:
    assert await execute(sandbox, "x = 20") == [{"type": "number_of_executions", "execution_count": 1}]
    assert await execute(sandbox, "x += 1\nprint('so far')\nx * 2") == [
        {"type": "number_of_executions", "execution_count": 2},
        {"type": "stdout", "text": "so far\n"},
        {"type": "result", "is_main_result": True, "text": "42"},
    ]
    assert (await execute(sandbox, "import os; os.environ['OWN'], os.getenv('MORE')", env_vars={"MORE": "x"}))[1][
        "text"
    ] == "('of all', 'x')"
    assert (await execute(sandbox, "os.getenv('MORE')"))[1:] == []
    # Commands and files are of the same sandbox.
    await execute(sandbox, "open('/tmp/kept', 'w').write('by code')")
    assert (await sandbox.run("cat /tmp/kept"))[0] == "by code"


async def test_an_error_has_its_name_value_and_traceback(sandbox: CalledSandbox) -> None:
    error = (await execute(sandbox, "def f():\n    return 1 / 0\nf()"))[-1]
    assert (error["type"], error["name"], error["value"]) == ("error", "ZeroDivisionError", "division by zero")
    assert "return 1 / 0" in error["traceback"]
    assert "code_kernel" not in error["traceback"]
    assert (await execute(sandbox, "a b"))[-1]["name"] == "SyntaxError"
    # Some agents tell their answer by an exception that is no Exception.
    answer = "class Answer(BaseException):\n    def __init__(self, value): self.value = value\nraise Answer('safe:1')"
    assert (await execute(sandbox, answer))[-1]["value"] == "safe:1"


async def test_what_ipython_adds_and_what_is_displayed(sandbox: CalledSandbox) -> None:
    assert (await execute(sandbox, "for n in range(2):\n    !echo by a shell"))[1]["text"] == "by a shell\n" * 2
    assert (await execute(sandbox, "import asyncio\nawait asyncio.sleep(0, 'awaited')"))[-1]["text"] == "awaited"
    shown = await execute(sandbox, "class Shown:\n    def _repr_html_(self): return '<b>'\ndisplay(Shown()); 1")
    assert [(event["is_main_result"], event.get("html")) for event in shown[1:]] == [(False, "<b>"), (True, None)]


async def test_an_execution_whose_client_is_gone_is_interrupted(sandbox: CalledSandbox) -> None:
    with anyio.move_on_after(60) as leaving:
        body = {"code": "import subprocess; subprocess.run(['sleep', '1000.015625'])"}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: sandbox.plain("POST", "/execute", json=body))
            await until(lambda: bool(processes("sleep", "1000.015625")))
            leaving.cancel()
    # Nothing runs in the sandbox until the next step of it.
    assert (await execute(sandbox, "subprocess.__name__"))[-1]["text"] == "subprocess"
    await until(lambda: not processes("sleep", "1000.015625"))


async def test_a_kernel_that_dies_is_told_and_begins_anew(sandbox: CalledSandbox) -> None:
    assert (await execute(sandbox, "x = 1; import os; os._exit(3)"))[-1]["name"] == "KernelDied"
    assert (await execute(sandbox, "x"))[-1]["name"] == "NameError"


async def test_executions_that_come_at_once_take_their_turns(sandbox: CalledSandbox) -> None:
    counts: list[int] = []

    async def count() -> None:
        counts.append((await execute(sandbox, "1"))[0]["execution_count"])

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(count)
    assert sorted(counts) == [1, 2, 3]


async def test_what_cannot_be_executed_is_refused_by_name(sandbox: CalledSandbox) -> None:
    for path, body, word in (
        ("/execute", {"code": "1", "language": "r"}, "run_code in r"),
        ("/execute", {"code": "1", "context_id": "other"}, "contexts"),
        ("/contexts", {}, "contexts"),
    ):
        status, answer = await sandbox.plain("POST", path, json=body)
        assert (status, word in answer.decode()) == (501, True)
