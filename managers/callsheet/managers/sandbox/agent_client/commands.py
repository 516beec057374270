"""Commands of a sandbox: each is a job of its agent, with pipes for its output and a meter for its use."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import anyio
import anyio.to_thread
from callsheet.managers.sandbox.agent_client.capture import OutputPipe
from callsheet.managers.sandbox.agent_client.client import AgentJob
from callsheet.managers.sandbox.agent_client.command_defaults import judging_environment, merged_environment
from callsheet.managers.sandbox.agent_client.jobs import Process, SandboxJobs
from callsheet.managers.sandbox.agent_client.metering import Meter
from callsheet.managers.sandbox.agent_client.parts import SandboxParts
from callsheet.managers.sandbox.agent_client.refusals import cannot_execute
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, OutputListener, OutputName
from callsheet.managers.sandbox.cgroups import CommandLeaf
from callsheet.managers.sandbox.errors import StoppedError

# Pipes that background processes still hold; beyond these the oldest is closed.
_MOST_HELD_PIPES = 32


class SandboxCommands:
    """Runs the commands of one sandbox, one after another.

    Args:
        jobs: Jobs of its agent.
        parts: Parts of the sandbox.
    """

    def __init__(self, jobs: SandboxJobs, parts: SandboxParts) -> None:
        self._jobs = jobs
        self._parts = parts
        self._held: list[OutputPipe] = []

    async def run(self, command: CommandSpec, stop: anyio.Event, on_output: OutputListener | None) -> CommandOutcome:
        """Runs a command to its end, or to `stop`, which kills what it started; raises what `execute` raises."""
        self._jobs.check()
        if stop.is_set():
            raise StoppedError
        leaf = await self._jobs.take_leaf()
        pipes: list[OutputPipe] = []
        try:
            meter = await self._jobs.at_once(Meter.begin, self._parts.group, leaf)
            started = time.monotonic()
            for stream in OutputName:
                listener = partial(on_output, stream) if on_output is not None else None
                pipes.append(OutputPipe(command.max_output_bytes, listener))
            job = await self._start_command(command, pipes, leaf)
            result, stopped = await self._jobs.finish(job, stop, leaf, lambda: _watch(pipes))
            wall_s = time.monotonic() - started
            for pipe in pipes:
                pipe.finish()
            if result.refused is not None:
                raise cannot_execute(command, *result.refused)
            outcome = await self._jobs.at_once(meter.outcome, result, pipes, wall_s)
            if leaf is not None:
                await self._jobs.give_back(leaf)
            self._hold(pipes)
            return replace(outcome, stopped=stopped)
        except BaseException:
            for pipe in pipes:
                pipe.close()
            if leaf is not None:
                with anyio.CancelScope(shield=True):
                    await self._jobs.in_thread(leaf.release)
            raise

    def close(self) -> None:
        """Closes the pipes that background processes still hold."""
        for pipe in self._held:
            pipe.close()
        self._held.clear()

    async def _start_command(
        self, command: CommandSpec, pipes: Sequence[OutputPipe], leaf: CommandLeaf | None
    ) -> AgentJob:
        descriptors = {1: pipes[0].write_end, 2: pipes[1].write_end}
        if command.stdin:
            descriptors[0] = await self._jobs.memory_file(command.stdin)
        process = Process(
            command.arguments,
            merged_environment(self._defaults_of(command), command.environment),
            command.working_directory,
            descriptors,
        )
        try:
            return await self._jobs.start(process, leaf)
        finally:
            if command.stdin:
                os.close(descriptors[0])
            for pipe in pipes:
                pipe.close_write_end()

    def _defaults_of(self, command: CommandSpec) -> Mapping[str, str]:
        parts = self._parts
        return (
            judging_environment(parts.environment, parts.packages, command.home) if command.home else parts.environment
        )

    def _hold(self, pipes: Sequence[OutputPipe]) -> None:
        """Keeps reading pipes that background processes hold."""
        self._held = [pipe for pipe in (*self._held, *pipes) if pipe.is_open]
        _watch(self._held)
        while len(self._held) > _MOST_HELD_PIPES:
            self._held.pop(0).close()


def _watch(pipes: Sequence[OutputPipe]) -> None:
    for pipe in pipes:
        pipe.watch()
