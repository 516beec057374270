"""A manager of a new kind and an engine driver from a separately installed package, which Callsheet does not know."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from callsheet.cli.app import app
from callsheet.client import Client, GenerateResult, Sampling, Succeeded, ToolCallResult
from callsheet.client.admin import AdminClient
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.inference.engine_kind import ENGINE_KINDS
from callsheet.managers.kind import MANAGER_KINDS
from callsheet.managers.plugins import PluginError
from typer.testing import CliRunner

pytestmark = pytest.mark.anyio
PACKAGE = Path(__file__).parents[1] / "support" / "plugin_package"
_DEADLINE_S = 100.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as pip installs it, from nothing but its own sources."""
    source = tmp_path_factory.mktemp("source") / "package"
    target = tmp_path_factory.mktemp("installed")
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__"))
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", str(target), str(source)]
    subprocess.run(command, check=True, timeout=_DEADLINE_S, stdin=subprocess.DEVNULL)
    return target


@pytest.fixture
def plugged_in(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setenv("PYTHONPATH", str(installed))


@pytest.mark.usefixtures("plugged_in")
async def test_new_kinds_are_found_registered_and_scheduled(tmp_path: Path) -> None:
    settings = StackSettings(
        tmp_path,
        managers=("echo", "inference"),
        arguments={
            "echo": ("--prefix", "you said: "),
            "inference": ("--engine", "parrot", "--engine-option", "shift=100"),
        },
    )
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(settings) as stack, Client(stack.address) as client:
            async with await client.open_job("j") as job:
                said = await job.tool_call("echo", "say", b"hello")
                generated = await job.generate([1, 2, 3], Sampling(max_new_tokens=8))
            async with AdminClient(stack.address) as admin:
                status = await admin.status()
    assert isinstance(said, Succeeded)
    assert said.value == ToolCallResult(b"you said: hello")
    assert isinstance(generated, Succeeded)
    assert isinstance(generated.value, GenerateResult)
    assert generated.value.token_ids == (101, 102, 103)
    assert {manager.capabilities.get("engine") for manager in status.managers} == {None, "parrot"}


@pytest.mark.usefixtures("plugged_in")
async def test_an_announced_manager_of_a_new_kind_is_waited_for(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S):
        # Nothing waits for the manager but the action, which the scheduler keeps as it knows what an echo will serve.
        async with (
            local_stack(StackSettings(tmp_path, managers=("echo",)), wait_for_managers=False) as stack,
            Client(stack.address) as client,
            await client.open_job("j") as job,
        ):
            said = await job.tool_call("echo", "say", b"early")
    assert isinstance(said, Succeeded)
    assert said.value == ToolCallResult(b"early")


@pytest.mark.usefixtures("plugged_in")
def test_the_command_line_offers_what_a_new_kind_declares() -> None:
    runner = CliRunner()
    assert "Answer tool calls with their arguments." in runner.invoke(app, ["manager", "--help"]).output
    offered = runner.invoke(app, ["manager", "echo", "--help"]).output
    assert "--prefix" in offered
    assert "ECHO_PREFIX" in offered


def test_own_kinds_are_found_as_others_are() -> None:
    assert set(MANAGER_KINDS.names()) >= {"inference", "noop", "reward", "sandbox"}
    assert all(MANAGER_KINDS.get(name).name == name for name in MANAGER_KINDS.names())
    assert all(ENGINE_KINDS.get(name).name == name for name in ENGINE_KINDS.names())


def test_what_is_not_installed_is_refused_with_what_is() -> None:
    with pytest.raises(PluginError, match="engine: 'parrot' is none of openai, scripted, sglang, torch, vllm"):
        ENGINE_KINDS.get("parrot")
