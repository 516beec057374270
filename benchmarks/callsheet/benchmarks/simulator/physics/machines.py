"""One attempt at a task, and what every machine that runs attempts does with it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from callsheet.benchmarks.simulator.policy import Lane, Task


class Attempt:
    """A started attempt.

    Attributes:
        task: Whose attempt it is.
        machine: What runs it.
        delay: Overhead before it executes, in seconds.
    """

    __slots__ = ("delay", "machine", "task")

    def __init__(self, task: Task, machine: Machine) -> None:
        self.task = task
        self.machine = machine
        self.delay = 0.0


class Used(NamedTuple):
    """What an attempt used: CPU seconds, and its execution clock."""

    cpu_s: float
    clock_s: float


class Machine(Protocol):
    """CPU nodes, GPU nodes or APIs: takes an attempt's resources, executes it, and gives them back."""

    def admit(self, task: Task, node: str, width: int, lane: Lane) -> Attempt:
        """Takes what the attempt needs from now on.

        Raises:
            ValueError: There is no such node, or not enough on it.
        """

    def execute(self, attempt: Attempt) -> None:
        """Begins the work; the machine's `EndListener` is told when it is done."""

    def release(self, attempt: Attempt) -> Used:
        """Gives everything back, at the end."""


class EndListener(Protocol):
    """Is told that an attempt's work is done."""

    def __call__(self, attempt: Attempt, *, timed_out: bool = False, refused_for_s: float = -1.0) -> None:
        """Ends an attempt; 0 or more says that an API refused it and asks to be left alone for so long."""
