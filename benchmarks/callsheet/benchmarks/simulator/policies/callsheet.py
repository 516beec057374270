"""Callsheet itself: the unchanged core, planner, predictors and node sharing, driven in virtual time.

What comes from the world becomes events of the core, and the core's commands become calls of the world, exactly as the
service and its managers do it. A turn of the policy model stays outside the core: it takes its drawn time whatever else
runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from callsheet.benchmarks.peers import CLIENT, TO_CLIENT, manager_of
from callsheet.benchmarks.simulator.policy import EndFacts, Lane, LiveRollout, PolicyFactory, Task, World
from callsheet.benchmarks.simulator.scenario import Rollout, Work
from callsheet.benchmarks.simulator.shell.attempts import Attempts, begun
from callsheet.benchmarks.simulator.shell.core_loop import VirtualCoreLoop, make_planner
from callsheet.benchmarks.simulator.shell.nodes import GatedMemory, SharedNodes
from callsheet.benchmarks.simulator.shell.prediction import LEAST_USE, Knowledge
from callsheet.benchmarks.simulator.shell.requests import (
    SANDBOX_SERVICE,
    RequestBook,
    job_request,
    join_all,
    trajectory_request,
)
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings
from callsheet.managers.sandbox.node_sharing import KnownCommand, NodeSharingSettings
from callsheet.managers.sandbox.settings import CoreSharing
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.events import ManagerHeartbeat
from callsheet.scheduler.core.words.model import CPU, ActionKey, ActionKind, TrajectoryEnd
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.core.words.registration import ServiceState


class ModelStates:
    """The states of all models on all GPU nodes, as they were told last."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._models = tuple(model.name for model in world.scenario.cluster.models)
        self._told: dict[tuple[str, str], ServiceState] = {}
        self._brings_in_s: dict[tuple[str, str], float] = {}

    def news(self, node: str) -> ManagerHeartbeat | None:
        """What a node's manager tells after a call began or ended there; None if nothing changed."""
        resident = self._world.resident(node)
        changed = []
        for model in self._models:
            seconds = self._world.set_up_s(node, model)
            if seconds:
                self._brings_in_s[node, model] = seconds
            usual_s = self._brings_in_s.get((node, model), 0.0)
            state = ServiceState(
                model, usual_s if seconds is None else seconds, resident[model], no_room=seconds is None
            )
            if self._told.get((node, model)) != state:
                self._told[node, model] = state
                changed.append(state)
        return ManagerHeartbeat(node, services=tuple(changed)) if changed else None


class CallsheetCounts(NamedTuple):
    """What happened so far: actions submitted, with outcome; attempts; lane changes; planning rounds."""

    submitted: int
    outcomes: int
    attempts: int
    switches: int
    rounds: int


class Callsheet:
    """The policy; see the module's docstring."""

    name = "callsheet"

    def __init__(self, world: World, settings: CallsheetSettings | None = None) -> None:
        self.settings = settings or CallsheetSettings()
        self._world = world
        scenario = world.scenario
        self._waiting: dict[tuple[str, str], LiveRollout] = {}
        self._requests = RequestBook(scenario.cluster)
        self._knowledge = Knowledge()
        self._attempts = Attempts(self._begin)
        self._memory = GatedMemory(
            scenario.cluster, self._start, self._refuse, now=lambda: world.now, wake_at=world.wake_at
        )
        ranked = self.settings.core_sharing is CoreSharing.RANKED
        self._nodes = SharedNodes(world, NodeSharingSettings()) if ranked else None
        self._loop = VirtualCoreLoop(
            world,
            make_planner(self.settings, self._knowledge.predictors, world),
            {
                commands.Dispatch: self._attempts.dispatched,
                commands.ResizeAttempt: self._resize,
                commands.Deliver: self._deliver,
                commands.Refuse: _refused,
            },
            planned=self._planned,
            on_ends=self._knowledge.attempts_ended,
        )
        self._models = ModelStates(world)
        for share in scenario.jobs:
            self._loop.post(events.JobOpenRequested(TO_CLIENT, job_request(share)))
        for joined in join_all(scenario, cores_shared=self.settings.core_sharing is not CoreSharing.RESERVED):
            self._loop.post(joined)
        for node in scenario.cluster.gpu_nodes():
            self._tell_models(node)

    def arrived(self, live: LiveRollout) -> None:
        """Opens the trajectory; one that needs a sandbox asks for it and waits for its admission."""
        rollout = live.rollout
        request = trajectory_request(rollout)
        self._loop.post(events.TrajectoryOpenRequested(TO_CLIENT, request))
        if rollout.reset is None:
            self._world.begin(live)
            return
        self._waiting[(rollout.job, rollout.name)] = live
        self._submit(_reset_key(rollout), rollout.reset, rollout, None)

    def ready(self, task: Task) -> None:
        """Submits an action, or lets one that is retried start again."""
        key = _key_of(task)
        action = self._attempts.find(key)
        if action is not None:
            self._attempts.ready(action, task)
        else:
            self._submit(key, task.work, task.rollout, task)

    def ended(self, task: Task, facts: EndFacts) -> None:
        """Tells the core what became of an attempt."""
        action = self._attempts.find(_key_of(task))
        dispatch = action.dispatch if action is not None else None
        if action is None or dispatch is None:
            raise ValueError(f"{task.rollout.name}: what ended was not under way")
        if self._nodes is not None:
            self._nodes.end(task)
        if task.work.service:
            self._tell_models(task.node)
        held_mib = self._memory.leave(task, facts)
        self._loop.post(self._attempts.ended(action, dispatch, facts, held_mib))

    def finished(self, live: LiveRollout) -> None:
        """Closes the trajectory."""
        rollout = live.rollout
        self._memory.gone(live)
        self._loop.post(events.TrajectoryCloseRequested(TO_CLIENT, rollout.job, rollout.name, TrajectoryEnd.COMPLETED))

    def woken(self) -> None:
        """Does what has come due."""
        if self._nodes is not None:
            self._nodes.woken()
        self._memory.woken()
        self._loop.woken()

    def counts(self) -> CallsheetCounts:
        """What happened so far; what waits for the end of this instant is done first."""
        self._loop.woken()
        attempts = self._attempts
        switches = self._nodes.switches if self._nodes is not None else 0
        return CallsheetCounts(attempts.submitted, attempts.outcomes, attempts.started, switches, self._loop.rounds)

    def _submit(self, key: ActionKey, work: Work, rollout: Rollout, task: Task | None) -> None:
        request = self._requests.action(key, work, rollout)
        self._attempts.submit(key, task)
        self._loop.post(events.SubmitRequested(TO_CLIENT, request, CLIENT))

    def _planned(self, plan: Plan) -> None:
        for key in plan.admitted:
            live = self._waiting.pop(key, None)
            if live is not None:
                self._world.begin(live)

    def _begin(self, task: Task, dispatch: commands.Dispatch) -> None:
        if dispatch.service == SANDBOX_SERVICE:
            self._memory.enter(task, dispatch)
        elif task.work.service and self._world.set_up_s(manager_of(dispatch), task.work.service) is None:
            # Enough GPUs are free, but not in one chunk.
            self._refuse(task, dispatch)
        else:
            self._start(task, dispatch)

    def _refuse(self, task: Task, dispatch: commands.Dispatch) -> None:
        self._loop.post(self._attempts.refuse(task, dispatch))

    def _start(self, task: Task, dispatch: commands.Dispatch) -> None:
        node, width = manager_of(dispatch), dispatch.resources.get(CPU, 1)
        lane = Lane.FOREGROUND
        switches = 0
        if self._nodes is not None and dispatch.service == SANDBOX_SERVICE:
            lane = self._nodes.start(task, node, self._command(task, dispatch, width))
            switches = self._nodes.switches
        in_sandbox = dispatch.service == SANDBOX_SERVICE
        delay = self.settings.overheads.before_start_s(switches, self._attempts.started, in_sandbox=in_sandbox)
        self._world.start(task, node=node, width=width, lane=lane, delay=delay)
        if task.work.service:
            self._tell_models(node)
        self._loop.post(begun(dispatch))

    def _tell_models(self, node: str) -> None:
        news = self._models.news(node)
        if news is not None:
            self._loop.post(news)

    def _command(self, task: Task, dispatch: commands.Dispatch, width: int) -> KnownCommand:
        prediction = dispatch.prediction
        use = max(prediction.use, LEAST_USE) if prediction is not None else self._knowledge.use(dispatch.request, width)
        return KnownCommand(task.sequence, use, demotable=task.work.kind is not ActionKind.REWARD)

    def _resize(self, command: commands.ResizeAttempt) -> None:
        task = self._attempts.running(command.token)
        if task is not None and task.started_at >= 0.0:
            self._world.set_width(task, command.resources[CPU])

    def _deliver(self, command: commands.Deliver) -> None:
        self._attempts.delivered(command.key)


CALLSHEET = PolicyFactory(Callsheet.name, Callsheet)


def callsheet_with(settings: CallsheetSettings) -> PolicyFactory:
    """Callsheet with settings other than its defaults."""
    return replace(CALLSHEET, make=lambda world: Callsheet(world, settings))


def _reset_key(rollout: Rollout) -> ActionKey:
    return ActionKey(rollout.job, f"{rollout.name}/reset")


def _key_of(task: Task) -> ActionKey:
    rollout = task.rollout
    return _reset_key(rollout) if task.work is rollout.reset else ActionKey(rollout.job, str(task.sequence))


def _refused(command: commands.Refuse) -> None:
    command.reply_to.session.put_result(command.reply_to.sequence, command.refusal)
