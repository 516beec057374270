"""Runs generate actions on an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
import structlog
from callsheet.managers.clock import SharedTime, waiting
from callsheet.managers.ends import infra_failure
from callsheet.managers.executor import (
    Attempt,
    AttemptResult,
    Broken,
    Completed,
    Executor,
    PayloadAccess,
    PayloadError,
    Stopped,
)
from callsheet.managers.inference.driver import (
    EngineCapabilities,
    EngineDriver,
    EngineError,
    FinishReason,
    GenerateRequest,
    Generation,
    LogProbsMode,
    RequestRefusedError,
    Sampling,
    WeightUpdateError,
)
from callsheet.managers.inference.engine_kind import UnloadedEngine
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.update_orders import order_of, token_of
from callsheet.managers.inference.weight_places import WeightPlaces
from callsheet.managers.inference.weights_keeper import Standing, WeightsKeeper
from callsheet.managers.models.first_use import FirstUse, LoadError
from callsheet.timing.waits import Cause
from callsheet.v1 import action_pb2, manager_service_pb2, outcome_pb2
from typing_extensions import override

log = structlog.get_logger(__name__)

CANARY_PLACES = 1
"""Places in a server's batch that no attempt takes."""
_FINISH_REASONS = {
    FinishReason.STOP: outcome_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: outcome_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: outcome_pb2.FINISH_REASON_ABORT,
}
_WIRE_MODES = {
    LogProbsMode.SAMPLED: action_pb2.LOG_PROBS_MODE_SAMPLED,
    LogProbsMode.RAW: action_pb2.LOG_PROBS_MODE_RAW,
}
_LOG_PROBS_MODES = {
    action_pb2.LOG_PROBS_MODE_UNSPECIFIED: LogProbsMode.SAMPLED,
    **{wire: mode for mode, wire in _WIRE_MODES.items()},
}


class InferenceExecutor(Executor):
    """Runs one engine. Hundreds of attempts may run at once; each is one request of the engine."""

    def __init__(
        self,
        engine: FirstUse[EngineDriver],
        description: UnloadedEngine,
        settings: InferenceSettings,
        places: WeightPlaces | None = None,
        *,
        node_gpus: int = 0,
    ) -> None:
        """Takes the engine over: `close` closes it.

        Args:
            engine: The engine.
            description: What it can do.
            settings: How it is registered.
            places: Where published weights may lie; None for anywhere.
            node_gpus: GPUs that its node registers, of which an engine of this process reserves its own.
        """
        self._places = places
        self._node_gpus = node_gpus
        self.engine = engine
        self._description = description
        self._settings = settings
        self._report: Callable[[], None] = _tell_nobody
        self._busy = SharedTime()
        self._weights = WeightsKeeper(settings.policy_version, self._weights_changed)

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """The model, with the policy version it serves now. Its compute threads are reserved as "cpu"."""
        settings = self._settings
        return [
            manager_service_pb2.HostedService(
                name=settings.service,
                kinds=[action_pb2.ACTION_KIND_GENERATE],
                slots=self._slots,
                reserved=self._reserved,
                policy_version=self._policy_version,
                instances=1,
                kv_tokens=self._kv_tokens,
                weights=self._weights.message(self.engine.value),
            )
        ]

    @override
    def capabilities(self) -> Mapping[str, str]:
        """Describes the abilities of the engine."""
        driver, abilities = self.engine.value, self._abilities
        return {
            "prefix_cache": _yes_no(abilities.prefix_cache),
            "batch_invariant": _yes_no(abilities.batch_invariant),
            **self._description.capabilities,
            **_context(driver),
        }

    @override
    async def run(self, attempt: Attempt) -> AttemptResult:
        """Generates; a stop aborts the request and returns the tokens so far.

        An abort that came from the engine itself (a weight update, a pause) is a success with FINISH_REASON_ABORT:
        the client has the partial tokens and may go on from them.
        """
        if attempt.action.WhichOneof("payload") != "generate":
            return Broken(infra_failure("unsupported_kind", "this manager runs generate actions only"))
        try:
            request = request_of(attempt)
        except ValueError as error:
            return Broken.of(outcome_pb2.FAILURE_KIND_ENV, "invalid_sampling", str(error))
        try:
            with waiting(Cause.ENGINE):
                driver = await self.engine.get()
                admission = await self._weights.admit(driver, attempt.stop_requested)
        except LoadError as error:
            return Broken(infra_failure("engine_failed", str(error)))
        if admission is None:
            return Stopped() if attempt.stop_requested.is_set() else _unproved("the engine's weights are not proved")
        with self._busy.part() as share_s:
            outcome = await _generate(driver, attempt, replace(request, kv_namespace=admission.namespace))
            usage = self._usage(request, outcome, share_s())
        if isinstance(outcome, EngineError):
            return replace(_broken_by(outcome), usage=usage)
        attempt.waits.add(Cause.ENGINE, outcome.waited_s)
        with waiting(Cause.ENGINE):
            vouched = await self._weights.vouch(admission, outcome, driver, attempt.stop_requested)
        if not vouched:
            return replace(_unproved("it ran into new weights that were not proved"), usage=usage)
        result = result_of(outcome, request.sampling.log_probs_mode)
        result.begun_version = admission.version
        succeeded = outcome_pb2.Succeeded(generate=result)
        if outcome.finish_reason is FinishReason.ABORT and attempt.stop_requested.is_set():
            return Stopped(partial=succeeded, usage=usage)
        return Completed(succeeded, usage)

    def _usage(self, request: GenerateRequest, outcome: Generation | EngineError, share_s: float) -> outcome_pb2.Usage:
        """Returns the usage of a request: its share of the time of all that the engine holds."""
        usage = outcome_pb2.Usage()
        for resource, units in {**self._reserved, "gpu": self._gpus}.items():
            if units:
                usage.cost.held[resource] = units * share_s
        if isinstance(outcome, Generation):
            usage.cpu_s = outcome.cpu_s
            computed = max(len(request.prompt_token_ids) - outcome.cached_tokens, 0)
            counted = (("in", computed), ("cached", outcome.cached_tokens), ("out", len(outcome.token_ids)))
            usage.cost.used.update({f"tokens_{name}": count for name, count in counted if count})
        return usage

    @override
    def service_states(self) -> Sequence[manager_service_pb2.ServiceState]:
        """Reports whether the engine can begin a request: not while it is unreachable or paused."""
        driver = self.engine.value
        ready = driver is None or (driver.health.alive and not driver.health.paused)
        weights = self._weights.message(driver)
        # An engine that is paused for an update is to be given nothing for the sake of its weights.
        ready = ready or self._weights.standing is Standing.UPDATING
        state = manager_service_pb2.ServiceState(
            name=self._settings.service,
            instances=int(ready),
            no_room=not ready,
            weights=weights,
            problem="" if ready or driver is None else _why_not(driver),
        )
        if driver is not None:
            state.others_sequences, state.others_kv_tokens = driver.others.sequences, driver.others.kv_tokens
        return [state]

    def _weights_changed(self) -> None:
        self._report()

    @override
    async def update_weights(self, update: manager_service_pb2.UpdateWeights, payloads: PayloadAccess) -> None:
        """See `Executor`."""
        try:
            driver = await self.engine.get()
            async with order_of(update, payloads, self._places) as order:
                await self._weights.update(order, driver)
        except (LoadError, PayloadError, WeightUpdateError, OSError) as error:
            await self._weights.refuse(token_of(update.update), str(error))

    @override
    def on_service_change(self, report: Callable[[], None]) -> None:
        """See `Executor`."""
        self._report = report

    @override
    async def serve(self) -> None:
        """Watches the engine, once it is loaded."""
        try:
            driver = await self.engine.wait()
        except LoadError:
            return  # `wait_failed` tells it.
        driver.on_change(self._report)
        await driver.serve()

    @override
    async def wait_failed(self) -> str:
        """Waits until the engine is dead and returns why."""
        try:
            driver = await self.engine.wait()
        except LoadError as error:
            return str(error)
        return await driver.wait_failed()

    @override
    async def close(self) -> None:
        """Closes the engine, if it was loaded."""
        if self.engine.value is not None:
            await self.engine.value.close()

    @property
    def _kv_tokens(self) -> int:
        """Size of the engine's KV cache in tokens; before it is loaded, the size that its driver expects."""
        if self.engine.value is None:
            return int(self._description.capabilities.get("kv_cache_tokens", "0"))
        driver = self.engine.value
        return driver.limits.kv_tokens or driver.load.kv_tokens_total

    @property
    def _slots(self) -> int:
        if self._description.attached and self.engine.value is not None:
            sequences = self.engine.value.limits.sequences
            # A canary must not wait until an attempt has ended: its engine serves nothing new meanwhile.
            return max(1, sequences - CANARY_PLACES) if sequences else self._settings.slots
        return self._settings.slots

    @property
    def _reserved(self) -> dict[str, int]:
        if self._description.attached:
            return {}
        gpus = min(self._gpus, self._node_gpus)
        return {"cpu": self._settings.thread_count} | ({"gpu": gpus} if gpus else {})

    @property
    def _gpus(self) -> int:
        return self._abilities.gpus if self._settings.engine_gpus is None else self._settings.engine_gpus

    @property
    def _abilities(self) -> EngineCapabilities:
        return self._description.abilities if self.engine.value is None else self.engine.value.capabilities

    @property
    def _policy_version(self) -> int:
        return self._settings.policy_version if self.engine.value is None else self.engine.value.policy_version


async def _generate(driver: EngineDriver, attempt: Attempt, request: GenerateRequest) -> Generation | EngineError:
    outcome: Generation | EngineError
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_abort_when_stopped, driver, attempt, request.request_id)
        try:
            # The wait is bounded by the attempt's execution clock: the runtime sets `stop_requested`.
            outcome = await driver.generate(request)
        except EngineError as error:
            outcome = error
        tasks.cancel_scope.cancel()
    return outcome


async def _abort_when_stopped(driver: EngineDriver, attempt: Attempt, request_id: str) -> None:
    await attempt.stop_requested.wait()
    await driver.abort(request_id)


def request_id_of(grant: manager_service_pb2.Grant) -> str:
    """Returns the engine's id for an attempt: unique, and of a fixed width, as some engines abort by prefix."""
    return f"{grant.token.epoch:016x}-{grant.token.sequence:016x}"


def request_of(attempt: Attempt) -> GenerateRequest:
    """Translates an attempt's payload.

    Raises:
        ValueError: A sampling parameter breaks its rule.
    """
    payload = attempt.action.generate
    sampling = payload.sampling
    mode = _LOG_PROBS_MODES.get(sampling.log_probs_mode)
    if mode is None:
        raise ValueError(f"log_probs_mode is {sampling.log_probs_mode}; this engine knows {sorted(_LOG_PROBS_MODES)}")
    # What is not set has the contract's default, which is the class's own.
    given: dict[str, Any] = {"max_new_tokens": 0} | {field.name: value for field, value in sampling.ListFields()}
    given |= {"stop_token_ids": frozenset(sampling.stop_token_ids), "stop": tuple(sampling.stop)}
    return GenerateRequest(
        request_id=request_id_of(attempt.grant),
        prompt_token_ids=tuple(payload.prompt_token_ids),
        sampling=Sampling(**(given | {"log_probs_mode": mode})),
    )


def result_of(generation: Generation, mode: LogProbsMode) -> outcome_pb2.GenerateResult:
    """Translates what an engine produced, with log-probabilities of a mode."""
    return outcome_pb2.GenerateResult(
        token_ids=generation.token_ids,
        log_probs=generation.log_probs,
        finish_reason=_FINISH_REASONS[generation.finish_reason],
        policy_versions=[
            outcome_pb2.PolicyVersionSpan(version=span.version, begin=span.begin, end=span.end)
            for span in generation.version_spans
        ],
        cached_tokens=generation.cached_tokens,
        log_probs_mode=_WIRE_MODES[mode],
        seed=generation.seed,
        text=generation.text,
    )


def _broken_by(error: EngineError) -> Broken:
    # Whoever wrote the request asked for what the engine lacks: the model itself has done nothing yet. Ids are the
    # manager's own.
    if isinstance(error, RequestRefusedError) and error.reason != "duplicate_request":
        return Broken.of(outcome_pb2.FAILURE_KIND_ENV, error.reason, str(error))
    return Broken(infra_failure(error.reason, str(error)))


def _unproved(message: str) -> Broken:
    return Broken(infra_failure("weights_unproved", message))


def _why_not(driver: EngineDriver) -> str:
    health = driver.health
    return health.reason or ("the engine is paused" if health.paused else "the engine is dead")


def _tell_nobody() -> None:
    """Until there is somebody to tell."""


def _context(driver: EngineDriver | None) -> Mapping[str, str]:
    """Returns the engine's longest sequence, to which a gateway keeps conversations."""
    length = None if driver is None else driver.limits.context_length
    return {} if length is None else {"context_length": str(length)}


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"
