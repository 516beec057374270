"""Calls of models on GPU nodes."""

from __future__ import annotations

from typing import cast

from callsheet.benchmarks.simulator.events import EventQueue
from callsheet.benchmarks.simulator.level import Level
from callsheet.benchmarks.simulator.physics.gpu_node import GpuNode, Instance
from callsheet.benchmarks.simulator.physics.machines import Attempt, EndListener, Machine, Used
from callsheet.benchmarks.simulator.policy import Lane, Task
from callsheet.benchmarks.simulator.scenario import Cluster


class CallAttempt(Attempt):
    """A call with a slot of an instance."""

    __slots__ = ("instance", "node", "serving_since")

    def __init__(self, task: Task, machine: Machine, node: GpuNode, instance: Instance) -> None:
        super().__init__(task, machine)
        self.node = node
        self.instance = instance
        self.serving_since = -1.0


class GpuMachine:
    """All GPU nodes: a `Machine` for calls of models."""

    def __init__(self, cluster: Cluster, events: EventQueue, *, used: Level, held: Level, ended: EndListener) -> None:
        self._events = events
        self._used = used
        self._held = held
        self._ended = ended
        self._models = {model.name: model for model in cluster.models}
        self._nodes = {name: GpuNode(name, nodes.gpus) for name, nodes in cluster.gpu_nodes().items()}

    def node(self, name: str) -> GpuNode:
        """A node by name.

        Raises:
            ValueError: There is none.
        """
        node = self._nodes.get(name)
        if node is None:
            raise ValueError(f"node: {name!r} is no GPU node of this cluster")
        return node

    def set_up_s(self, node: str, model: str) -> float | None:
        """See `World`."""
        return self.node(node).set_up_s(self._models[model], self._events.now)

    def deploy(self, node: str, model: str) -> None:
        """See `World`."""
        self.node(node).deploy(self._models[model])

    def keep_in_host_memory(self, node: str, model: str) -> None:
        """See `World`."""
        self.node(node).keep_in_host_memory(self._models[model])

    def admit(self, task: Task, node: str, width: int, lane: Lane) -> Attempt:
        """See `Machine`. Width and lane mean nothing here."""
        place = self.node(node)
        instance = place.take_slot(self._models[task.work.service], self._events.now)
        if instance.calls == 1:
            self._held.add(instance.model.gpus)
        return CallAttempt(task, self, place, instance)

    def execute(self, attempt: Attempt) -> None:
        """See `Machine`: waits until the model is there, then is served."""
        call = cast(CallAttempt, attempt)
        call.node.come(call.instance, self._events.now)
        self._events.at(call.instance.ready_at, self._serve, call)

    def release(self, attempt: Attempt) -> Used:
        """See `Machine`."""
        call = cast(CallAttempt, attempt)
        instance, now = call.instance, self._events.now
        instance.calls -= 1
        instance.used_at = now
        if not instance.calls:
            self._held.add(-instance.model.gpus)
        if call.serving_since < 0:
            return Used(0.0, 0.0)
        instance.serving -= 1
        if not instance.serving:
            self._used.add(-instance.model.gpus)
        return Used(0.0, now - call.serving_since)

    def _serve(self, call: CallAttempt) -> None:
        if call.over:
            return
        call.serving_since = self._events.now
        call.instance.serving += 1
        if call.instance.serving == 1:
            self._used.add(call.instance.model.gpus)
        work = call.task.work
        self._events.at(self._events.now + min(work.service_s, work.timeout_s), self._served, call)

    def _served(self, call: CallAttempt) -> None:
        if not call.over:
            work = call.task.work
            self._ended(call, timed_out=work.service_s > work.timeout_s)
