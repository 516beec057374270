"""GPU nodes: instances of models on buddy chunks of GPUs, and the calls that they serve."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import cast

from callsheet.benchmarks.simulator.events import EventQueue, Level
from callsheet.benchmarks.simulator.physics.machines import Attempt, EndListener, Machine, Used
from callsheet.benchmarks.simulator.policy import Lane, Task
from callsheet.benchmarks.simulator.scenario import Cluster, Model


class Instance:
    """A model on a chunk of GPUs.

    Attributes:
        offset: Index of its first GPU.
        set_up_s: What it takes to come, from the first call that executes on.
        ready_at: When it is there; infinite before that call.
        calls: That have a slot.
        serving: Calls that it serves.
        used_at: When it last got or ended a call.
    """

    __slots__ = ("calls", "model", "offset", "ready_at", "serving", "set_up_s", "used_at")

    def __init__(self, model: Model, offset: int, set_up_s: float) -> None:
        self.model = model
        self.offset = offset
        self.set_up_s = set_up_s
        self.ready_at = inf
        self.calls = 0
        self.serving = 0
        self.used_at = 0.0


class GpuNode:
    """Where instances are, and where one more can go: on free GPUs, or where the least recently used ones idle."""

    def __init__(self, name: str, gpus: int) -> None:
        self.name = name
        self.instances: list[Instance] = []
        self._by_gpu: list[Instance | None] = [None] * gpus
        self._in_host_memory: set[str] = set()

    def resident(self) -> Counter[str]:
        """How many instances of which models are here."""
        return Counter(instance.model.name for instance in self.instances)

    def set_up_s(self, model: Model, now: float) -> float | None:
        """Seconds until a call could be served; None if every fitting GPU is busy."""
        instance = self._with_slot(model)
        if instance is not None:
            return instance.set_up_s if instance.ready_at == inf else max(0.0, instance.ready_at - now)
        return None if self._best_offset(model) is None else self._bringing_in_s(model)

    def take_slot(self, model: Model, now: float) -> Instance:
        """Takes a slot of an instance; of a new one if none has a free slot.

        Raises:
            ValueError: Every fitting GPU is busy.
        """
        instance = self._with_slot(model) or self._place(model)
        if instance is None:
            raise ValueError(f"node: {self.name} has no {model.gpus} idle GPUs in one chunk for {model.name}")
        instance.calls += 1
        instance.used_at = now
        return instance

    def come(self, instance: Instance, now: float) -> None:
        """Lets an instance come, unless it comes or is there."""
        if instance.ready_at == inf:
            instance.ready_at = now + instance.set_up_s
            self._in_host_memory.add(instance.model.name)

    def _with_slot(self, model: Model) -> Instance | None:
        free = [one for one in self.instances if one.model is model and one.calls < model.slots]
        return min(free, key=lambda one: (one.ready_at, -one.used_at, one.offset), default=None)

    def _bringing_in_s(self, model: Model) -> float:
        return model.restore_s + (0.0 if model.name in self._in_host_memory else model.load_s)

    def _place(self, model: Model) -> Instance | None:
        offset = self._best_offset(model)
        if offset is None:
            return None
        for idle in {one for one in self._by_gpu[offset : offset + model.gpus] if one is not None}:
            self._evict(idle)
        return self._put(Instance(model, offset, self._bringing_in_s(model)))

    def _put(self, instance: Instance) -> Instance:
        self.instances.append(instance)
        self._by_gpu[instance.offset : instance.offset + instance.model.gpus] = [instance] * instance.model.gpus
        return instance

    def _evict(self, instance: Instance) -> None:
        self.instances.remove(instance)
        self._by_gpu[instance.offset : instance.offset + instance.model.gpus] = [None] * instance.model.gpus

    def _best_offset(self, model: Model) -> int | None:
        """Start of the aligned chunk to use: free before idle, least recently used first, in full surroundings."""
        offsets = range(0, len(self._by_gpu) - model.gpus + 1, model.gpus)
        usable = [offset for offset in offsets if self._idle(offset, model.gpus)]
        return min(usable, key=lambda offset: self._cost(offset, model.gpus), default=None)

    def _idle(self, offset: int, gpus: int) -> bool:
        return all(one is None or one.calls == 0 for one in self._by_gpu[offset : offset + gpus])

    def _cost(self, offset: int, gpus: int) -> tuple[float, int, int]:
        inside = [one.used_at for one in self._by_gpu[offset : offset + gpus] if one is not None]
        around = offset // (2 * gpus) * 2 * gpus
        free_around = sum(one is None for one in self._by_gpu[around : around + 2 * gpus])
        return (max(inside, default=-1.0), free_around, offset)


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
        instance.serving -= 1
        if not instance.serving:
            self._used.add(-instance.model.gpus)
        return Used(0.0, now - call.serving_since)

    def _serve(self, call: CallAttempt) -> None:
        call.serving_since = self._events.now
        call.instance.serving += 1
        if call.instance.serving == 1:
            self._used.add(call.instance.model.gpus)
        work = call.task.work
        self._events.at(self._events.now + min(work.service_s, work.timeout_s), self._served, call)

    def _served(self, call: CallAttempt) -> None:
        work = call.task.work
        self._ended(call, timed_out=work.service_s > work.timeout_s)
