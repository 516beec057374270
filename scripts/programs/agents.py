"""The agents of `make agents`: how each is installed and started, and what the model has it do."""

from __future__ import annotations

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from callsheet.client import GatewayAccess

_CHATS = Path(__file__).resolve().parent / "tool_chats.py"


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class AgentToRun(ABC):
    """One agent.

    Attributes:
        name: Its own.
        shell: The tool by which it runs commands.
        argument: That tool's parameter which has the command.
        ending: What the model says last: a text, or a command that ends the agent.
        steps: What pip installs for it.
        package: Its package of npm; empty if it has none.
        program: The agent's program, below the directory of its run.
    """

    steps: Sequence[Sequence[str]] = ()
    package = ""
    program = ""

    def __init__(self, name: str, *, shell: str = "bash", argument: str = "command", ending: str = "") -> None:
        self.name = name
        self.content = f"Written by {name}.\n"
        self.file = f"notes-of-{name}.txt"
        self.task = f"Write the file {self.file}."
        self._tool = (shell, argument)
        self.replies = (
            f"<think>I look around first.</think>I list the files.{self.run('ls -la')}{self.run('pwd')}",
            f"<think>It is not there yet.</think>{self.write()}",
            self.run(f"cat {self.file}"),
            self.run(ending) if ending else "<think>It is there.</think>The file is written — 完成.",
        )

    def run(self, command: str) -> str:
        """The call by which the model runs a command."""
        name, argument = self._tool
        return _call(name, {argument: command})

    def write(self) -> str:
        """The call by which the model writes the file."""
        return self.run(f"printf 'Written by %s.\\n' {self.name} > {self.file}")

    def install(self, place: Path) -> None:
        """Installs its package of npm, unless it is there. That needs Node 20."""
        if self.package and not (place / self.program).exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), self.package]
            subprocess.run(command, check=True)

    @abstractmethod
    def command(self, place: Path, home: Path, access: GatewayAccess) -> list[str]:
        """How it is started; it is installed in `place`, and `home` is a directory for its settings."""

    def environment(self, home: Path) -> Mapping[str, str]:
        """Variables that it has besides the base URL and the key."""
        return {"HOME": str(home)}


class ToolChat(AgentToRun):
    """A loop of a provider's own client, as people write it."""

    def command(self, place: Path, home: Path, access: GatewayAccess) -> list[str]:
        """See `AgentToRun`."""
        return [sys.executable, str(_CHATS), self.name, self.task]


class MiniSweAgent(AgentToRun):
    """mini-swe-agent, which speaks chat completions through litellm."""

    # litellm needs mcp for calls of tools, and does not say so to pip.
    steps = (("mini-swe-agent==2.4.6", "mcp"),)
    program = "venv/bin/mini"

    def command(self, place: Path, home: Path, access: GatewayAccess) -> list[str]:
        """See `AgentToRun`."""
        options = ["--yolo", "--exit-immediately", "--output", str(home / "trajectory.json")]
        return [str(place / self.program), "--model", "openai/policy", "--task", self.task, *options]

    def environment(self, home: Path) -> Mapping[str, str]:
        """See `AgentToRun`."""
        own = {"MSWEA_CONFIGURED": "true", "MSWEA_GLOBAL_CONFIG_DIR": str(home), "MSWEA_COST_TRACKING": "ignore_errors"}
        return {**super().environment(home), **own}


class Codex(AgentToRun):
    """codex, which speaks responses."""

    model = "policy"

    package = "@openai/codex@0.169.0"
    program = "node_modules/.bin/codex"

    def command(self, place: Path, home: Path, access: GatewayAccess) -> list[str]:
        """See `AgentToRun`."""
        settings = f"""
            model = "{self.model}"
            model_provider = "callsheet"
            [model_providers.callsheet]
            name = "Callsheet"
            base_url = "{access.base_url}"
            env_key = "OPENAI_API_KEY"
            wire_api = "responses"
        """
        (home / "config.toml").write_text(settings, encoding="utf-8")
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return [str(place / self.program), "exec", *options, self.task]

    def environment(self, home: Path) -> Mapping[str, str]:
        """See `AgentToRun`."""
        return {**super().environment(home), "CODEX_HOME": str(home)}


class OpenCode(AgentToRun):
    """opencode, which speaks chat completions through a package of the AI SDK."""

    package = "opencode-ai@1.18.33"
    program = "node_modules/.bin/opencode"

    def run(self, command: str) -> str:
        """See `AgentToRun`; this agent wants commands described."""
        return _call("bash", {"command": command, "description": "Goes on with the task"})

    def command(self, place: Path, home: Path, access: GatewayAccess) -> list[str]:
        """See `AgentToRun`; a title for the conversation would be a call beside it."""
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": access.base_url, "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {"policy": {}},
        }
        settings = {
            "model": "callsheet/policy",
            "provider": {"callsheet": provider},
            "agent": {"title": {"disable": True}},
            "autoupdate": False,
            "permission": {"*": "allow"},
        }
        (home / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")
        return [str(place / self.program), "run", self.task]

    def environment(self, home: Path) -> Mapping[str, str]:
        """See `AgentToRun`."""
        own = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA", "STATE")}
        return {**super().environment(home), **own, "OPENCODE_CONFIG": str(home / "opencode.json")}


class PatchingCodex(Codex):
    """codex with a model whose name it knows: then it has a tool that takes a patch as a text."""

    model = "gpt-5.5"

    def write(self) -> str:
        """See `AgentToRun`."""
        patch = f"*** Begin Patch\n*** Add File: {self.file}\n+{self.content}*** End Patch\n"
        return _call("apply_patch", {"input": patch})


_ALL: tuple[AgentToRun, ...] = (
    ToolChat("openai-chat"),
    ToolChat("openai-responses"),
    ToolChat("anthropic-messages"),
    MiniSweAgent("mini-swe-agent", ending="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    Codex("codex", shell="exec_command", argument="cmd"),
    PatchingCodex("codex-patching", shell="exec_command", argument="cmd"),
    OpenCode("opencode"),
)
AGENTS = {agent.name: agent for agent in _ALL}
"""By name."""
