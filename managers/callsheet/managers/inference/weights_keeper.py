"""Keeps track of an engine's weights: their version, their proof, and the consequences for requests.

A request begins only under weights that are proved, or that the engine was started with. One that ran across an update
is vouched for at its end: were the new weights not proved, its tokens are not given to anybody.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from time import monotonic

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.inference.driver import (
    EngineDriver,
    EngineError,
    GenerateRequest,
    Generation,
    LogProbsMode,
    Sampling,
    UnsupportedError,
    WeightUpdateError,
)
from callsheet.managers.inference.proof import CANARY_TOKENS, USUAL_PROMPT, CanaryAnswer, Evidence, objection, warning
from callsheet.managers.inference.update_orders import Token, UpdateOrder
from callsheet.managers.inference.weights import FirstWeights, UpdateMode, WeightUpdate
from callsheet.v1 import manager_service_pb2, weights_pb2

log = structlog.get_logger(__name__)

# Where a batch is full a canary waits as a drain does, and has at least this long.
LEAST_CANARY_S = 60.0
READ_TIMEOUT_S = 30.0
# Changes that a request in flight may have run across.
_KEPT_ERAS = 64


class Standing(Enum):
    """Standing of an engine's weights: those that it may serve, and those that it may not."""

    INITIAL = weights_pb2.WEIGHTS_STANDING_INITIAL
    PROVED = weights_pb2.WEIGHTS_STANDING_PROVED
    UPDATING = weights_pb2.WEIGHTS_STANDING_UPDATING
    UNPROVED = weights_pb2.WEIGHTS_STANDING_UNPROVED


@dataclass(frozen=True, slots=True)
class BegunUnder:
    """Under what a request began: how many changes there had been by then, the version, and its KV namespace."""

    serial: int
    version: int
    namespace: str


@dataclass(frozen=True, slots=True)
class _Era:
    """A time of an engine: from one change of its weights to the next. `mode` is None where it was no update."""

    serial: int
    version: int
    mode: UpdateMode | None = None


@dataclass(frozen=True, slots=True)
class UpdateEnding:
    """How an update ended."""

    update: Token
    failure: str
    exposed_s: float
    answer: CanaryAnswer | None
    warning: str = ""


@dataclass(slots=True)
class _Change:
    """Effect of an update on an engine: whether its weights are certainly the old ones, and why it failed, if so."""

    failure: str = ""
    intact: bool = False
    answer: CanaryAnswer | None = None
    warning: str = ""


class WeightsKeeper:
    """The weights of one engine, as its manager knows them. Must be used from one event loop."""

    def __init__(self, version: int, report: Callable[[], None]) -> None:
        """Begins with what the engine was started with.

        Args:
            version: Its version.
            report: Is called whenever `message` would say something else.
        """
        self.standing = Standing.INITIAL
        self.reason = ""
        self.proved_by: Token | None = None
        self.updating: Token | None = None
        self.last: UpdateEnding | None = None
        self._report = report
        self._first_version = version
        self._eras: deque[_Era] = deque([_Era(0, version)], maxlen=_KEPT_ERAS)
        self._spoilt = 0
        self._before: tuple[Token, CanaryAnswer | None] | None = None
        self._proved_on = ""
        self._own = uuid.uuid4().hex[:8]
        self._settled = anyio.Event()
        self._settled.set()
        self._lock = anyio.Lock()

    @property
    def version(self) -> int:
        """The version that it serves, or is updating to."""
        return self._eras[-1].version

    def message(self, driver: EngineDriver | None) -> manager_service_pb2.EngineWeights:
        """Returns what the scheduler is told, again and again."""
        if driver is not None:
            self._look(driver)
        told = manager_service_pb2.EngineWeights(
            standing=weights_pb2.WeightsStanding.ValueType(self.standing.value),
            version=self._version_on(driver),
            reason=self.reason,
        )
        if self.standing is Standing.PROVED and self.proved_by is not None:
            told.proved_by.epoch, told.proved_by.sequence = self.proved_by
        if self.updating is not None:
            told.updating.epoch, told.updating.sequence = self.updating
        if self.last is not None:
            _fill_report(told.last_update, self.last)
        return told

    def _version_on(self, driver: EngineDriver | None) -> int:
        """Returns the version; of the weights that an engine was started with, the engine itself reports it."""
        return self.version if driver is None or self.standing is not Standing.INITIAL else driver.policy_version

    async def admit(self, driver: EngineDriver, stop: anyio.Event) -> BegunUnder | None:
        """Lets a request begin, once an update that is under way has ended; None if the weights are not proved.

        None also if the request is asked to stop before.
        """
        while self.standing is Standing.UPDATING and not stop.is_set():
            await _first_of(self._settled, stop)
        self._look(driver)
        if stop.is_set() or self.standing not in (Standing.INITIAL, Standing.PROVED):
            return None
        serial = self._eras[-1].serial
        return BegunUnder(serial, self._version_on(driver), f"{self._own}-{serial}")

    async def vouch(
        self, admission: BegunUnder, generation: Generation, driver: EngineDriver, stop: anyio.Event
    ) -> bool:
        """Returns whether all tokens of a request come from weights that were proved, or that it began under.

        A request that may have run under weights that are being proved waits for the end of that.
        """
        self._look(driver)
        versions = {span.version for span in generation.version_spans}
        old = versions <= {admission.version}
        later = self._since(admission)
        if not later:
            return old or self.standing is Standing.INITIAL
        if old and all(era.mode is not UpdateMode.KEEP and era.version != admission.version for era in later):
            return True
        while self.standing is Standing.UPDATING and not stop.is_set():
            await _first_of(self._settled, stop)
        self._look(driver)
        known = {admission.version} | {era.version for era in self._since(admission)}
        proved = self.standing in (Standing.INITIAL, Standing.PROVED)
        return proved and self._spoilt <= admission.serial and versions <= known

    def _since(self, admission: BegunUnder) -> list[_Era]:
        return [era for era in self._eras if era.serial > admission.serial]

    def _begin_era(self, version: int, mode: UpdateMode | None = None) -> None:
        self._eras.append(_Era(self._eras[-1].serial + 1, version, mode))

    async def update(self, order: UpdateOrder, driver: EngineDriver) -> None:
        """Changes the weights, proves them, and keeps how that ended. A cancelled update leaves them unproved."""
        async with self._lock:
            if order.update == self.updating or (self.last is not None and self.last.update >= order.update):
                return
            if self.standing is Standing.PROVED and self.proved_by == order.rollout:
                self._end(order, _Change(), began=monotonic())
                return
            if isinstance(order.source, FirstWeights):
                order = replace(order, version=self._first_version)
            await self._change(order, driver)

    async def refuse(self, update: Token, reason: str) -> None:
        """Notes that an update could not be begun: everything is as it was."""
        async with self._lock:
            self.last = UpdateEnding(update, reason, 0.0, None)
            self._report()

    async def _change(self, order: UpdateOrder, driver: EngineDriver) -> None:
        before = await self._answer_before(order, driver)
        former = (self.standing, self.reason, self._eras.copy())
        self.standing, self.updating = Standing.UPDATING, order.update
        self._settled = anyio.Event()
        self._begin_era(order.version, order.mode)
        self._report()
        began, change = monotonic(), _Change("the update was cut short")
        try:
            change = await _replace(order, driver, before)
        finally:
            if change.intact:
                # Requests that began before have the same weights still.
                self.standing, self.reason, self._eras = former
            else:
                first = isinstance(order.source, FirstWeights)
                good = Standing.INITIAL if first else Standing.PROVED
                self.standing = Standing.UNPROVED if change.failure else good
                self.reason = change.failure
                self.proved_by = None if change.failure or first else order.rollout
                self._proved_on = driver.incarnation
                if change.failure:
                    self._spoilt = self._eras[-1].serial
            self._end(order, change, began=began)

    def _end(self, order: UpdateOrder, change: _Change, *, began: float) -> None:
        exposed_s = monotonic() - began
        answer = change.answer if not change.failure else None
        self.last = UpdateEnding(order.update, change.failure, exposed_s, answer, change.warning)
        self.updating = None
        self._settled.set()
        self._report()
        said = {"version": order.version, "mode": order.mode.value, "exposed_s": round(exposed_s, 3)}
        if change.failure:
            log.warning("weights not proved", reason=change.failure, intact=change.intact, **said)
        elif change.warning:
            log.warning("weights proved", warning=change.warning, **said)
        else:
            log.info("weights proved", **said)

    async def _answer_before(self, order: UpdateOrder, driver: EngineDriver) -> CanaryAnswer | None:
        """The answer before the first try of a rollout: after one that failed the engine may have the new weights."""
        if self._before is not None and self._before[0] == order.rollout:
            return self._before[1]
        answer: CanaryAnswer | None = None
        if not (order.unchanged or isinstance(order.source, FirstWeights)):
            try:
                answer = await ask(driver, order.prompt, timeout_s=order.timeout_s)
            except (EngineError, TimeoutError) as error:
                log.warning("no canary before an update", reason=str(error))
        self._before = (order.rollout, answer)
        return answer

    def _look(self, driver: EngineDriver) -> None:
        """Notices that an engine has restarted since it was proved."""
        if self.standing is Standing.PROVED and driver.incarnation != self._proved_on:
            self.standing, self.proved_by = Standing.UNPROVED, None
            self.reason = "the engine restarted after its weights were proved"
            self._begin_era(driver.policy_version)
            self._spoilt = self._eras[-1].serial
            log.warning("weights lost", reason=self.reason)


async def _replace(order: UpdateOrder, driver: EngineDriver, before: CanaryAnswer | None) -> _Change:
    """Changes the weights and judges what the engine has then."""
    try:
        with anyio.fail_after(2 * order.timeout_s):
            shown = await driver.update_weights(
                WeightUpdate(source=order.source, version=order.version, mode=order.mode, timeout_s=order.timeout_s)
            )
    except WeightUpdateError as error:
        return _Change(str(error), intact=error.intact)
    except UnsupportedError as error:
        return _Change(str(error), intact=True)
    except EngineError as error:
        return _Change(f"the engine failed in its update: {error}")
    except TimeoutError:
        return _Change(f"the update took longer than {2 * order.timeout_s:g} s")
    try:
        with anyio.fail_after(READ_TIMEOUT_S):
            version = await driver.read_policy_version()
        tokens = len(order.expected.token_ids) if order.expected else CANARY_TOKENS
        answer = await ask(driver, order.prompt, tokens, timeout_s=order.timeout_s)
    except EngineError as error:
        return _Change(f"the engine failed before its new weights were proved: {error}")
    except TimeoutError:
        return _Change("the engine did not answer the canary in time")
    evidence = Evidence(
        version=order.version,
        version_read=version,
        after=answer,
        before=before,
        expected=order.expected,
        reference=order.reference,
        shown=shown,
        tolerance=driver.capabilities.log_prob_tolerance,
    )
    return _Change(objection(evidence), answer=answer, warning=warning(evidence))


async def ask(
    driver: EngineDriver, prompt: tuple[int, ...] = (), tokens: int = CANARY_TOKENS, *, timeout_s: float
) -> CanaryAnswer:
    """Returns an engine's answer to a canary, which no KV of earlier requests has a part in.

    Raises:
        EngineError: The engine fails, or refuses the prompt.
        TimeoutError: It does not answer in time.
    """
    name = uuid.uuid4().hex
    request = GenerateRequest(
        request_id=f"{name[:16]}-{name[16:]}",
        prompt_token_ids=prompt or USUAL_PROMPT,
        sampling=Sampling(max_new_tokens=tokens, temperature=0.0, log_probs_mode=LogProbsMode.RAW),
        kv_namespace=f"canary-{name}",
    )
    with anyio.fail_after(max(timeout_s, LEAST_CANARY_S)):
        generation = await driver.generate(request)
    return CanaryAnswer(generation.token_ids, generation.log_probs)


async def _first_of(*events: anyio.Event) -> None:
    """Returns once one of some events is set."""
    async with anyio.create_task_group() as tasks:

        async def wait(event: anyio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)


def _fill_report(report: manager_service_pb2.UpdateReport, ending: UpdateEnding) -> None:
    report.update.epoch, report.update.sequence = ending.update
    report.failure, report.exposed_s, report.warning = ending.failure, ending.exposed_s, ending.warning
    if ending.answer is not None:
        report.canary.token_ids.extend(ending.answer.token_ids)
        report.canary.log_probs.extend(ending.answer.log_probs)
