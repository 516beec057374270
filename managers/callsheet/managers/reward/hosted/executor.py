"""Runs reward actions on hosted models: each is a service of its own name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Executor, Stopped
from callsheet.managers.reward.hosted.host import ModelHost
from callsheet.managers.reward.hosted.model_spec import ModelSpec, ModelTask
from callsheet.managers.reward.hosted.residency import HostedTenant, ModelStage, Residency
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.managers.reward.hosted.tickets import AnswerTrouble, ModelAnswer, ModelRequest, NoAnswer
from callsheet.managers.reward.hosted.weights_layout import read_layout
from callsheet.timing.waits import Cause
from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2, outcome_pb2
from typing_extensions import override

_SCORERS = {ModelTask.CLASSIFY: "model", ModelTask.TEACHER: "teacher", ModelTask.JUDGE: "judge"}
_FAULTS = {
    AnswerTrouble.MODEL: outcome_pb2.FAILURE_KIND_INFRA,
    AnswerTrouble.QUESTION: outcome_pb2.FAILURE_KIND_ENV,
    AnswerTrouble.MEMORY: outcome_pb2.FAILURE_KIND_RESOURCE_LIMIT,
}


class HostedModelsExecutor(Executor):
    """Serves all models of a manager."""

    def __init__(self, settings: HostedSettings) -> None:
        """Reads the headers of all weights, and nothing more.

        Args:
            settings: The models, and the devices they share.

        Raises:
            ValueError: A directory cannot be used, or its model does not fit.
        """
        self._settings = settings
        self._parked = tempfile.TemporaryDirectory(prefix="callsheet-parked-")
        self.host = ModelHost(settings, _residency(settings), Path(self._parked.name))

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """One for each model. The cores that they compute with are reserved once."""
        workers = {hosted.spec.worker for hosted in self.host.models.values() if not hosted.spec.url}
        cores = {"cpu": self._settings.model_threads * len(workers)} if _on_cpu(self._settings) and workers else {}
        states = {state.name: state for state in self.service_states()}
        return [
            manager_service_pb2.HostedService(
                name=name,
                kinds=[action_pb2.ACTION_KIND_REWARD],
                slots=self._settings.slots,
                reserved=cores if index == 0 else {},
                setup_s=states[name].setup_s,
                instances=states[name].instances,
                instance_slots=states[name].instance_slots,
            )
            for index, name in enumerate(self.host.models)
        ]

    @override
    def capabilities(self) -> Mapping[str, str]:
        """Returns the device of the models, their memory budget, and the kind of each model."""
        kinds = {f"model:{name}": hosted.spec.kind.value for name, hosted in self.host.models.items()}
        return {"device": self._settings.device, "memory_budget_mib": str(self._settings.memory_budget_mib), **kinds}

    @override
    def service_states(self) -> Sequence[manager_service_pb2.ServiceState]:
        """Returns the state of each model; work can begin on none whose worker is being started again."""
        return [self._state(tenant) for tenant in self.host.residency.tenants.values()]

    @override
    def take_demand(self, demand: manager_service_pb2.ServiceDemand) -> None:
        """Counts the demand when models come and give way."""
        if demand.service in self.host.models:
            self.host.residency.expect(demand.service, demand.waiting + demand.coming)

    @override
    def on_service_change(self, report: Callable[[], None]) -> None:
        """Hands it on."""
        self.host.on_change(report)

    @override
    async def serve(self) -> None:
        """Runs the workers."""
        await self.host.serve()

    @override
    async def run(self, attempt: Attempt) -> AttemptResult:
        """Waits for the model's turn; the clock stands until its batch begins."""
        model, reward = attempt.grant.service, attempt.action.reward
        hosted = self.host.models.get(model)
        asked = reward.WhichOneof("scorer")
        if hosted is None:
            message = f"{model!r}: must be one of {', '.join(self.host.models)}"
            return Broken.of(outcome_pb2.FAILURE_KIND_INFRA, "unsupported_kind", message)
        if asked != _SCORERS[hosted.spec.kind]:
            message = f"model {model} is of kind {hosted.spec.kind.value}: it answers {_SCORERS[hosted.spec.kind]}"
            return Broken.of(outcome_pb2.FAILURE_KIND_ENV, "wrong_kind_of_model", f"{message}, not {asked}")
        ticket = self.host.ask(model, question_of(reward))
        attempt.execution_clock, attempt.stands_for = ticket.execution_s, Cause.MODEL
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._withdraw_when_stopped, attempt, ticket)
            try:
                # Bounded: batches and restores have deadlines, and a stop withdraws it.
                await ticket.done.wait()
            finally:
                self.host.withdraw(ticket)
            tasks.cancel_scope.cancel()
        on_cpu = _on_cpu(self._settings)
        threads = self._settings.model_threads if on_cpu and not hosted.spec.url else 0
        computes_on = {"cpu": threads, "gpu": 0 if on_cpu else hosted.spec.gpus}
        return replace(_result(ticket), usage=_usage(ticket, computes_on))

    @override
    async def close(self) -> None:
        """Removes what was written; the workers end with `serve`."""
        self._parked.cleanup()

    async def _withdraw_when_stopped(self, attempt: Attempt, ticket: ModelRequest) -> None:
        await attempt.stop_requested.wait()
        self.host.withdraw(ticket)

    def _state(self, tenant: HostedTenant) -> manager_service_pb2.ServiceState:
        there = tenant.stage is ModelStage.RESIDENT
        blocked_s = max(self.host.models[tenant.name].blocked_until - monotonic(), 0.0)
        return manager_service_pb2.ServiceState(
            name=tenant.name,
            setup_s=0.0 if there else self.host.residency.restore_s(tenant.name) + blocked_s,
            instances=int(there),
            instance_slots=self.host.room(tenant.name),
            no_room=not self.host.has_worker(tenant.name),
        )


def question_of(reward: action_pb2.RewardInput) -> dict[str, Any]:
    """A reward as `questions` has it."""
    match reward.WhichOneof("scorer"):
        case "model":
            return {"token_ids": list(reward.model.token_ids), **_text(reward.model.text)}
        case "teacher":
            tokens = {
                "prompt_token_ids": list(reward.teacher.prompt_token_ids),
                "token_ids": list(reward.teacher.token_ids),
            }
            return tokens | _text(reward.teacher.text)
        case _:
            return {"rubric": reward.judge.rubric, **_text(reward.judge.text)}


def _text(text: action_pb2.ConversationText) -> dict[str, Any]:
    messages = [{"role": each.role, "content": each.content} for each in text.messages]
    return {"prompt": text.prompt, "response": text.response, "messages": messages}


def _residency(settings: HostedSettings) -> Residency:
    from callsheet.managers.reward.hosted.places import ModelDevices

    tenants = [HostedTenant(spec.name, _size(spec), spec.gpus, spec.pinned) for spec in settings.all_models]
    return Residency(ModelDevices(len(settings.devices), settings.budget_bytes), tenants)


def _size(spec: ModelSpec) -> int:
    """Bytes that a model takes on each device of its chunk."""
    if spec.url:
        return spec.memory_mib << 20
    if spec.gpus != 1:
        raise ValueError(f"model {spec.name}: gpus: {spec.gpus}: must be 1 for a model in a worker")
    try:
        return read_layout(spec.directory).size
    except OSError as error:
        raise ValueError(f"model {spec.name}: {spec.directory}: cannot be read: {error}") from error


def _on_cpu(settings: HostedSettings) -> bool:
    return settings.devices == ("cpu",)


def _result(ticket: ModelRequest) -> AttemptResult:
    answer = ticket.answer
    if answer is None:
        return Stopped()
    if isinstance(answer, NoAnswer):
        failed = outcome_pb2.Failed(kind=_FAULTS[answer.trouble], reason=answer.reason, message=answer.message)
        if answer.text:
            failed.partial.reward.text = answer.text
        return Broken(failed)
    return Completed(outcome_pb2.Succeeded(reward=_reward(ticket, answer)))


def _usage(ticket: ModelRequest, computes_on: Mapping[str, int]) -> outcome_pb2.Usage:
    """Returns the usage of a request: its part of its batch's time, and its tokens."""
    usage = outcome_pb2.Usage(cpu_s=ticket.cpu_s, cost=common_pb2.Cost(used=ticket.tokens))
    for resource, units in computes_on.items():
        if units and ticket.share_s:
            usage.cost.held[resource] = units * ticket.share_s
    return usage


def _reward(ticket: ModelRequest, answer: ModelAnswer) -> outcome_pb2.RewardResult:
    began = ticket.asked_at if ticket.began_at is None else ticket.began_at
    return outcome_pb2.RewardResult(
        score=answer.score,
        log_probs=answer.log_probs,
        token_ids=answer.token_ids,
        text=answer.text,
        line_s=began - ticket.asked_at,
        restore_s=ticket.restore_s,
    )
