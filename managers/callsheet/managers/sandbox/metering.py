"""Measures one command: what its groups counted, or what the agent said where there are none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from callsheet.managers.sandbox.agent_client import JobResult
from callsheet.managers.sandbox.backend import CommandOutcome
from callsheet.managers.sandbox.capture import OutputPipe
from callsheet.managers.sandbox.cgroups import CommandLeaf, LimitEvents, SandboxGroup


@dataclass(frozen=True, slots=True)
class CommandMeter:
    """Where a command is measured: its leaf, if there are groups, and the counters before it began."""

    group: SandboxGroup | None
    leaf: CommandLeaf | None
    before: LimitEvents

    @classmethod
    def begin(cls, group: SandboxGroup | None) -> CommandMeter:
        """Makes the command's leaf and starts measuring. Blocks."""
        if group is None:
            return cls(None, None, LimitEvents(0, 0))
        return cls(group, group.new_leaf(), group.begin_measuring())

    def outcome(self, result: JobResult, pipes: Sequence[OutputPipe], wall_s: float) -> CommandOutcome:
        """Returns how the command ended, with what the groups counted. Blocks."""
        group, leaf = self.group, self.leaf
        after = group.limit_events() if group is not None else self.before
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
            cpu_s=leaf.cpu_s() if leaf is not None else result.cpu_s,
            peak_memory_bytes=(group.peak_memory_bytes() if group is not None else 0) or result.peak_memory_bytes,
            out_of_memory=after.out_of_memory > self.before.out_of_memory,
            process_limit=after.process_limit > self.before.process_limit,
        )
