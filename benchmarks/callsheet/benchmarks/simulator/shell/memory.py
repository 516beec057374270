"""The memory of CPU nodes under virtual time, as the sandbox managers give it: by need, and who lacks some waits."""

from __future__ import annotations

from collections.abc import Callable

from callsheet.benchmarks.peers import manager_of
from callsheet.benchmarks.simulator.policy import EndFacts, LiveRollout, Task
from callsheet.benchmarks.simulator.scenario import Cluster
from callsheet.benchmarks.simulator.shell.requests import rounded_up
from callsheet.managers.sandbox.memory_ledger import MemoryLedger, MemoryTerms, Stay
from callsheet.scheduler.core.words.commands import Dispatch
from callsheet.scheduler.core.words.model import MEMORY, ActionKind


class GatedMemory:
    """The ledger of each node's manager, and the commands that wait for memory there.

    Args:
        cluster: The machines.
        start: Starts a command whose sandbox has its whole demand.
        refuse: Gives a command back that would wait for ever.
    """

    def __init__(
        self, cluster: Cluster, start: Callable[[Task, Dispatch], None], refuse: Callable[[Task, Dispatch], None]
    ) -> None:
        nodes = cluster.cpu_nodes().items()
        self._ledgers = {name: MemoryLedger(node.memory_mb, by_need=True) for name, node in nodes}
        self._start = start
        self._refuse = refuse
        self._inside: dict[Task, MemoryLedger] = {}
        self._line: dict[str, tuple[Task, Dispatch]] = {}

    def enter(self, task: Task, dispatch: Dispatch) -> None:
        """Starts a command, at once or when its sandbox can have its whole demand."""
        ledger = self._inside[task] = self._ledgers[manager_of(dispatch)]
        sandbox, work = _sandbox_of(task), task.work
        if work.in_sandbox and work.kind is not ActionKind.ENV_RESET:
            if not ledger.thaw(sandbox):
                self._start(task, dispatch)
                return
        elif work.in_sandbox:
            ledger.ask(sandbox, dispatch.resources.get(MEMORY, 0), MemoryTerms())
        else:
            ledger.ask(sandbox, rounded_up(work.peak_memory_mb), MemoryTerms(Stay.ATTEMPT, beside=task.rollout.name))
        self._line[sandbox] = task, dispatch
        self._advance(ledger)

    def leave(self, task: Task, facts: EndFacts) -> int:
        """Notes the end of a command, or that it waits no more; returns what its sandbox holds now, 0 without one."""
        ledger, sandbox = self._inside.pop(task, None), _sandbox_of(task)
        if ledger is None:
            return 0
        self._line.pop(sandbox, None)
        made = task.work.in_sandbox and not (task.work.kind is ActionKind.ENV_RESET and facts.failed)
        if made and not facts.cancelled:  # a cancelled one's sandbox goes with it
            ledger.rest(sandbox, task.rollout.memory_mb)
        else:
            ledger.give_back(sandbox)
        held_mib = ledger.held_mib(sandbox)
        self._advance(ledger)
        return held_mib

    def gone(self, live: LiveRollout) -> None:
        """Takes back what a trajectory's sandbox had, if it had one."""
        ledger = self._ledgers.get(live.node)
        if ledger is not None:
            ledger.give_back(live.rollout.name)
            self._advance(ledger)

    def _advance(self, ledger: MemoryLedger) -> None:
        for sandbox in ledger.advance():
            self._start(*self._line.pop(sandbox))
        while (stuck := ledger.stuck()) is not None:
            ledger.give_back(stuck)
            self._inside.pop(self._line[stuck][0])
            self._refuse(*self._line.pop(stuck))


def _sandbox_of(task: Task) -> str:
    """What a command runs in: its trajectory's sandbox, or one for itself."""
    return task.rollout.name if task.work.in_sandbox else f"{task.rollout.name}/{task.sequence}"
