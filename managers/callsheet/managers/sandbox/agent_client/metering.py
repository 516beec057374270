"""Measures one command or step: what its groups counted, or what is known where there are none."""

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
class Meter:
    """Measures a command by its leaf or what its agent says, or a step by its session's leaf or all of its sandbox.

    Attributes:
        group: Of the sandbox, if there are groups.
        leaf: Where it runs, if there are groups; others may have run there before.
        first_process: Of the sandbox, for a step; None for a command.
        before: The counters before it.
        cpu_before_s: CPU seconds before it.
    """

    group: SandboxGroup | None
    leaf: CommandLeaf | None
    first_process: int | None
    before: LimitEvents
    cpu_before_s: float

    @classmethod
    def begin(cls, group: SandboxGroup | None, leaf: CommandLeaf | None, first_process: int | None = None) -> Meter:
        """Starts measuring. Blocks for a step without a leaf."""
        before = group.begin_measuring() if group is not None else LimitEvents(0, 0)
        return cls(group, leaf, first_process, before, _cpu_s(leaf, first_process) or 0.0)

    def outcome(self, result: AgentJobResult, pipes: Sequence[OutputPipe], wall_s: float) -> CommandOutcome:
        """Returns how it ended, with what was counted. Blocks for a step without a leaf."""
        group, used_s = self.group, _cpu_s(self.leaf, self.first_process)
        after = group.limit_events() if group is not None else self.before
        output, errors = (pipe.buffer for pipe in pipes)
        by_signal = os.WIFSIGNALED(result.status)
        return CommandOutcome(
            exit_code=-os.WTERMSIG(result.status) if by_signal else os.WEXITSTATUS(result.status),
            signal=os.WTERMSIG(result.status) if by_signal else 0,
            stdout=output.content(),
            stderr=errors.content(),
            stdout_dropped=output.dropped,
            stderr_dropped=errors.dropped,
            wall_s=wall_s,
            cpu_s=result.cpu_s if used_s is None else max(0.0, used_s - self.cpu_before_s),
            peak_memory_bytes=(group.peak_memory_bytes() if group is not None else 0) or result.peak_memory_bytes,
            out_of_memory=after.out_of_memory > self.before.out_of_memory,
            process_limit=after.process_limit > self.before.process_limit,
        )


def _cpu_s(leaf: CommandLeaf | None, first_process: int | None) -> float | None:
    if leaf is not None:
        return leaf.cpu_s()
    return cpu_seconds_below(first_process) if first_process is not None else None
