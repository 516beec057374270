"""Measures one command: what its groups counted, or what the agent said where there are none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from callsheet.managers.sandbox.agent_client.capture import OutputPipe
from callsheet.managers.sandbox.agent_client.client import AgentJobResult
from callsheet.managers.sandbox.backend import CommandOutcome
from callsheet.managers.sandbox.cgroups import CommandLeaf, LimitEvents, SandboxGroup
from callsheet.managers.sandbox.process_tree import cpu_seconds_below


@dataclass(frozen=True, slots=True)
class CommandMeter:
    """Where a command is measured: its leaf, if there are groups, and the counters before it began."""

    group: SandboxGroup | None
    leaf: CommandLeaf | None
    before: LimitEvents

    @classmethod
    def begin(cls, group: SandboxGroup | None, leaf: CommandLeaf | None) -> CommandMeter:
        """Starts measuring a command that is to run in a leaf."""
        return cls(group, leaf, group.begin_measuring() if group is not None else LimitEvents(0, 0))

    def end(self, result: AgentJobResult, pipes: Sequence[OutputPipe], wall_s: float) -> CommandOutcome:
        """Returns how the command ended, with what the groups counted, and releases its leaf. Blocks."""
        cpu_s = self.leaf.cpu_s() if self.leaf is not None else result.cpu_s
        outcome = _outcome(result, pipes, wall_s, cpu_s=cpu_s, group=self.group, before=self.before)
        if self.leaf is not None:
            self.leaf.release()
        return outcome


@dataclass(frozen=True, slots=True)
class StepMeter:
    """Where a step of a session is measured: by what its session's leaf, or else the whole sandbox, uses meanwhile."""

    group: SandboxGroup | None
    leaf: CommandLeaf | None
    first_process: int
    before: LimitEvents
    cpu_before_s: float

    @classmethod
    def begin(cls, group: SandboxGroup | None, leaf: CommandLeaf | None, first_process: int) -> StepMeter:
        """Starts measuring. Blocks."""
        before = group.begin_measuring() if group is not None else LimitEvents(0, 0)
        return cls(group, leaf, first_process, before, _step_cpu_s(leaf, first_process))

    def outcome(self, result: AgentJobResult, pipes: Sequence[OutputPipe], wall_s: float) -> CommandOutcome:
        """Returns how the step ended, with what was counted. Blocks."""
        cpu_s = max(0.0, _step_cpu_s(self.leaf, self.first_process) - self.cpu_before_s)
        return _outcome(result, pipes, wall_s, cpu_s=cpu_s, group=self.group, before=self.before)


def _step_cpu_s(leaf: CommandLeaf | None, first_process: int) -> float:
    return leaf.cpu_s() if leaf is not None else cpu_seconds_below(first_process)


def _outcome(
    result: AgentJobResult,
    pipes: Sequence[OutputPipe],
    wall_s: float,
    *,
    cpu_s: float,
    group: SandboxGroup | None,
    before: LimitEvents,
) -> CommandOutcome:
    after = group.limit_events() if group is not None else before
    output, errors = (pipe.buffer for pipe in pipes)
    by_signal = os.WIFSIGNALED(result.status)
    return CommandOutcome(
        exit_code=0 if by_signal else os.WEXITSTATUS(result.status),
        signal=os.WTERMSIG(result.status) if by_signal else 0,
        stdout=output.content(),
        stderr=errors.content(),
        stdout_dropped=output.dropped,
        stderr_dropped=errors.dropped,
        wall_s=wall_s,
        cpu_s=cpu_s,
        peak_memory_bytes=(group.peak_memory_bytes() if group is not None else 0) or result.peak_memory_bytes,
        out_of_memory=after.out_of_memory > before.out_of_memory,
        process_limit=after.process_limit > before.process_limit,
    )
