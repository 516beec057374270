"""The base of executors that run attempts in sandboxes: their failures, and the parts that all of them share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import anyio
import structlog
from callsheet.managers.ends import infra_failure
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Executor, Stopped
from callsheet.managers.live_attempt import describe_for_log
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.commands.results import describe_error
from callsheet.managers.sandbox.errors import SandboxError, SandboxLostError, StoppedError
from callsheet.managers.sandbox.janitor import ManagerDirectory
from callsheet.managers.sandbox.provisioning.admitting_backend import AdmittingBackend
from callsheet.managers.sandbox.settings import CoreSharing, SandboxSettings
from callsheet.managers.sandbox.sharing.sandbox_use import SandboxUse
from callsheet.managers.sandbox.sharing.shared_cores import SharedCores
from callsheet.managers.sandbox.stopping import unless_stopped
from callsheet.v1 import action_pb2, manager_service_pb2
from typing_extensions import override

# How often sandboxes in use are looked at for forks that escaped a change.
_FOLLOW_S = 1.0

_log = structlog.get_logger(__name__)


class BaseSandboxExecutor(Executor):
    """Runs attempts that use sandboxes; a subclass says what they do there.

    Attributes:
        memory: What attempts wait at before something runs in a sandbox.
        shared_cores: What shares the cores among sandboxes; None where each attempt has cores of its own.
    """

    def __init__(self, backend: AdmittingBackend, settings: SandboxSettings, directory: ManagerDirectory) -> None:
        """Takes the backend and the directory over: `close` closes them."""
        self._settings = settings
        self._backend = backend
        self.memory = backend.memory
        self._directory = directory
        self._uses: dict[int, SandboxUse] = {}
        self._lost: list[AgentSandbox] = []
        sharing = settings.core_sharing is not CoreSharing.RESERVED
        self.shared_cores = SharedCores(settings.cores, settings.node_sharing) if sharing else None

    @abstractmethod
    async def _work(self, use: SandboxUse) -> AttemptResult:
        """Does what an attempt asks for; raises SandboxError and StoppedError where that cannot be done."""

    def _forget(self, sandbox_id: str, reason: str) -> AgentSandbox | None:
        """Gives up a sandbox that was lost; returns it if it was held."""
        del sandbox_id, reason
        return None

    def _service(
        self, name: str, kinds: Sequence[action_pb2.ActionKind.ValueType]
    ) -> manager_service_pb2.HostedService:
        """Returns a service of the manager."""
        count = self._settings.shared_cores or len(self._settings.cores)
        shared = {"cpu": count} if self.shared_cores is not None else {}
        return manager_service_pb2.HostedService(name=name, kinds=kinds, shared=shared)

    def _state(self, name: str) -> manager_service_pb2.ServiceState:
        """Returns the state of the service that tells how many attempts wait for memory."""
        return manager_service_pb2.ServiceState(name=name, waiting_for_memory=len(self.memory.ledger.line))

    @override
    def capabilities(self) -> Mapping[str, str]:
        """Describes the isolation and the limits of the backend, and how cores are shared."""
        return {**self._backend.capabilities(), "core_sharing": self._settings.core_sharing.value}

    @override
    def use_shared_cores(self, cores: Sequence[int]) -> None:
        """Takes the cores of its pool, where cores are shared."""
        if self.shared_cores is not None and cores:
            self.shared_cores.use(frozenset(cores))

    @override
    async def serve(self) -> None:
        """Does what sandboxes need while they are used, and ranks commands where cores are shared."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._backend.serve)
            tasks.start_soon(self._follow)
            if self.shared_cores is not None:
                await self.shared_cores.serve()

    @override
    async def run(self, attempt: Attempt) -> AttemptResult:
        """Runs an attempt: what it does, and what its foreseeable errors mean."""
        use = self._uses[id(attempt)] = SandboxUse(attempt, self._settings, self.shared_cores, self.memory)
        try:
            await self._bury_lost()
            unknown = frozenset(attempt.grant.cores) - self._settings.cores
            if unknown:
                return Broken(infra_failure("cores_unavailable", f"cores {sorted(unknown)} are not this manager's"))
            return await self._work(use)
        except StoppedError:
            return Stopped()
        except SandboxError as error:
            return await self._foreseen(error, attempt)
        finally:
            del self._uses[id(attempt)]

    @override
    async def resize(self, attempt: Attempt) -> None:
        """Applies an attempt's grant after a change."""
        if (use := self._uses.get(id(attempt))) is not None:
            await use.resize()

    async def _create(self, use: SandboxUse) -> AgentSandbox:
        """Makes a plain sandbox for an attempt; raises StoppedError once that is to stop."""
        spec = use.new_sandbox()

        async def create() -> AgentSandbox:
            return await self._backend.create(spec, lambda reason: self.lost(spec.sandbox_id, reason))

        return await unless_stopped(use.stop, create, lambda late: late.destroy())

    def lost(self, sandbox_id: str, reason: str) -> None:
        """Notes that a sandbox ended by itself."""
        _log.warning("sandbox_lost", sandbox=sandbox_id, reason=reason)
        if (held := self._forget(sandbox_id, reason)) is not None:
            self._lost.append(held)

    @override
    async def close(self) -> None:
        """Ends the backend."""
        await self._bury_lost()
        await self._backend.close()
        self._directory.release()

    async def _foreseen(self, error: SandboxError, attempt: Attempt) -> AttemptResult:
        if isinstance(error, SandboxLostError):
            if attempt.grant.sandbox_id:
                self.lost(attempt.grant.sandbox_id, str(error))
            await self._bury_lost()
            if attempt.stop_requested.is_set():
                return Stopped()
        failed = describe_error(error, attempt.action)
        _log.info(
            "attempt_failed",
            reason=failed.reason,
            message=failed.message,
            **describe_for_log(attempt.grant, attempt.action),
        )
        return Broken(failed)

    async def _bury_lost(self) -> None:
        """Removes what lost sandboxes left; their processes are gone already."""
        while self._lost:
            await self._lost.pop().destroy()

    async def _follow(self) -> None:
        while True:
            await anyio.sleep(_FOLLOW_S)
            for use in list(self._uses.values()):
                await use.follow()
            await self.memory.settle()
