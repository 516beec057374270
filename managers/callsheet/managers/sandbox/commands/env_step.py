"""Carries out an env_step in its sandbox: files in, a command or a step of a session, files out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import anyio
from callsheet.managers.executor import Attempt
from callsheet.managers.sandbox.agent_client.command_defaults import CommandDefaults
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, FileSpec, OutputListener, StepSpec
from callsheet.managers.sandbox.commands.live_output import LiveOutput
from callsheet.managers.sandbox.commands.requests import read_command, read_download, read_files, read_session_step
from callsheet.managers.sandbox.errors import FileRefusedError, StoppedError
from callsheet.managers.sandbox.settings import SandboxSettings

# Refusals of a file that say more than that it could not be read.
_REFUSALS = frozenset({"missing", "not_a_file", "too_large"})


@dataclass(frozen=True, slots=True)
class EnvStepRequest:
    """Request of an env_step.

    Attributes:
        files: Files that are written first.
        command: The command: a program of its own, or a step of a session.
        download: Checked paths of files to return, with the words that asked for them.
        live: Whether output is wanted while it runs.
    """

    files: Sequence[FileSpec]
    command: CommandSpec | StepSpec
    download: Sequence[tuple[str, str]]
    live: bool


@dataclass(frozen=True, slots=True)
class Download:
    """A file that was asked for: its content, or why there is none."""

    path: str
    content: bytes | None
    refusal: str = ""


async def read_env_step(attempt: Attempt, settings: SandboxSettings, defaults: CommandDefaults) -> EnvStepRequest:
    """Returns what an attempt at an env_step asks for; raises what the readers of `requests` raise."""
    step, payloads = attempt.action.env_step, attempt.payloads
    return EnvStepRequest(
        files=await read_files(step.files, payloads, defaults),
        command=read_session_step(step, settings, defaults)
        if step.session
        else await read_command(step.command, payloads, settings, defaults),
        download=read_download(step.download, defaults),
        live=step.stream_output,
    )


async def run_env_step(
    sandbox: AgentSandbox, request: EnvStepRequest, attempt: Attempt, settings: SandboxSettings
) -> tuple[CommandOutcome, list[Download]]:
    """Carries a step out; raises what the sandbox raises.

    A command that was stopped has no downloads. One that ended in time is told as stopped if its downloads were.
    """
    stop = attempt.stop_requested
    for file in request.files:
        await sandbox.write_file(file, stop)
    live = LiveOutput(attempt.report_output) if request.live else None
    try:
        outcome = await _run(sandbox, request.command, stop, live.take if live is not None else None)
    finally:
        if live is not None:
            live.close()
    if outcome.stopped:
        return outcome, []
    try:
        return outcome, await _download(sandbox, request.download, settings.max_download_bytes, stop)
    except StoppedError:
        return replace(outcome, stopped=True), []


async def _run(
    sandbox: AgentSandbox, command: CommandSpec | StepSpec, stop: anyio.Event, on_output: OutputListener | None
) -> CommandOutcome:
    if isinstance(command, StepSpec):
        return await sandbox.run_step(command, stop, on_output)
    return await sandbox.execute(command, stop, on_output)


async def _download(
    sandbox: AgentSandbox, paths: Sequence[tuple[str, str]], limit: int, stop: anyio.Event
) -> list[Download]:
    """Returns files, all of them together at most `limit` bytes."""
    downloads = []
    for asked, path in paths:
        try:
            content = await sandbox.read_file(path, limit, stop)
        except FileRefusedError as error:
            downloads.append(Download(asked, None, error.reason if error.reason in _REFUSALS else "unreadable"))
        else:
            limit -= len(content)
            downloads.append(Download(asked, content))
    return downloads
