"""A manager of a new kind, and a driver of a new engine, in a package of their own.

The manager serves the tool "echo", which answers with its arguments. The engine says its prompt again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from callsheet.managers.executor import Attempt, AttemptResult, Completed, Executor
from callsheet.managers.inference.driver import (
    EngineCapabilities,
    EngineDriver,
    EngineHealth,
    EngineLoad,
    FinishReason,
    GenerateRequest,
    Generation,
    VersionSpan,
)
from callsheet.managers.inference.engine_kind import EngineKind, UnloadedEngine
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.kind import ManagerKind, ServedActions
from callsheet.managers.settings import ManagerSettings
from callsheet.options.declaration import Setting
from callsheet.v1 import action_pb2, manager_service_pb2, outcome_pb2

_SERVICE = "echo"
_KINDS = (action_pb2.ACTION_KIND_TOOL_CALL,)


@dataclass(frozen=True, slots=True)
class EchoSettings:
    """What an echo says first."""

    prefix: Annotated[str, Setting("What each answer begins with.", variable="ECHO_PREFIX")] = ""


class EchoExecutor(Executor):
    """Answers tool calls with their arguments."""

    def __init__(self, settings: EchoSettings) -> None:
        self._prefix = settings.prefix.encode()

    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """The echo."""
        return [manager_service_pb2.HostedService(name=_SERVICE, kinds=_KINDS)]

    async def run(self, attempt: Attempt) -> AttemptResult:
        """Sends the arguments back."""
        said = await attempt.payloads.read(attempt.action.tool_call.arguments)
        response = await attempt.payloads.write(self._prefix + said)
        return Completed(outcome_pb2.Succeeded(tool_call=outcome_pb2.ToolCallResult(response=response)))


def _build_echo(settings: EchoSettings, _: ManagerSettings) -> Executor:
    return EchoExecutor(settings)


ECHO = ManagerKind(
    name="echo",
    summary="Answer tool calls with their arguments.",
    settings=EchoSettings,
    build=_build_echo,
    serves=(ServedActions(_SERVICE, _KINDS),),
)


@dataclass(frozen=True, slots=True)
class ParrotSettings:
    """How much a parrot changes what it hears."""

    shift: Annotated[int, Setting("Added to each token.")] = 0


class Parrot(EngineDriver):
    """An engine that says its prompt again, token by token."""

    capabilities = EngineCapabilities(
        update_modes=frozenset(),
        version_spans=True,
        prefix_cache=False,
        batch_invariant=True,
        stop_texts=False,
    )
    policy_version = 0
    load = EngineLoad(running=0, waiting=0, kv_tokens_used=0, kv_tokens_total=1024)
    health = EngineHealth(alive=True)

    def __init__(self, settings: ParrotSettings) -> None:
        self._shift = settings.shift

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `EngineDriver`."""
        heard = request.prompt_token_ids[: request.sampling.max_new_tokens]
        tokens = tuple(token + self._shift for token in heard)
        spans = (VersionSpan(0, 0, len(tokens)),)
        return Generation(tokens, (0.0,) * len(tokens), FinishReason.LENGTH, spans, seed=0)

    async def abort(self, request_id: str) -> None:
        """See `EngineDriver`: requests are over at once."""

    async def close(self) -> None:
        """See `EngineDriver`."""


def _build_parrot(own: ParrotSettings, _: InferenceSettings) -> UnloadedEngine:
    return UnloadedEngine(Parrot.capabilities, {"engine": "parrot"}, lambda: Parrot(own))


PARROT = EngineKind(name="parrot", settings=ParrotSettings, build=_build_parrot)
