"""The backend proper: starts what a planner planned, waits for the agent and hands out sandboxes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Protocol

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.sandbox.agent_client.client import AgentConnection
from callsheet.managers.sandbox.agent_client.packets import socket_pair
from callsheet.managers.sandbox.agent_client.parts import SandboxParts
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.cgroups import GroupLayout, SandboxGroup, bounds_socket_memory, limit_capabilities
from callsheet.managers.sandbox.errors import SandboxCreateError, SandboxLostError
from callsheet.managers.sandbox.files.changes import ChangedFiles
from callsheet.managers.sandbox.isolation.agent_backend import AgentBackend
from callsheet.managers.sandbox.isolation.kernel_bounds import KernelBounds
from callsheet.managers.sandbox.isolation.launcher_client import Child, LauncherClient, SpawnRequest, start_launcher
from callsheet.managers.sandbox.isolation.takers import DescriptorRoom, EpollRoom, Takers
from callsheet.managers.sandbox.network.doors import proxy_environment
from callsheet.managers.sandbox.node_sharing.lanes import describe_lanes
from callsheet.managers.sandbox.process_tree import pin_tree
from callsheet.managers.sandbox.settings import CoreSharing, SandboxSettings
from callsheet.managers.sandbox.walls.user_namespaces import forbidden_namespaces

_CREATE_SECONDS = 20.0
_END_SECONDS = 5.0
_MOST_ERROR_BYTES = 4096

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """How to start the first process of a sandbox.

    Attributes:
        process: The process, without what the backend adds: its stderr, its groups, the report of what it mounts, and
            the agent's socket as the first descriptor that it inherits, "{fd:0}".
        temporary: The temporary directory as commands see it.
        agent_directory: The agent's program as commands see it.
        environment: Default environment of commands.
        packages: See `SandboxParts`.
        limits: Soft and hard resource limits of commands by their names in `resource`.
        clean_up: Removes what the plan made, once the process is gone or did not start.
        bounds: What it can take of the kernel; None where it has no namespaces of its own.
        confined_to: See `SandboxParts`.
        files_at: See `SandboxParts`.
    """

    process: SpawnRequest
    temporary: str
    agent_directory: str
    environment: Mapping[str, str]
    packages: Sequence[str]
    limits: Mapping[str, tuple[int, int]]
    clean_up: Callable[[], None]
    bounds: KernelBounds | None = None
    confined_to: tuple[str, ...] = ()
    files_at: str = ""


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """A first process that the launcher started."""

    launcher: LauncherClient
    child: Child

    @property
    def ends_alone(self) -> bool:
        """All that the launcher started end with it."""
        return self.launcher.alive

    async def ran_out_of_memory(self) -> bool:
        """The launcher does not know; its groups do."""
        return False

    async def finish(self) -> None:
        """Waits for its end, and kills it after a while."""
        with anyio.move_on_after(_END_SECONDS):
            await self.child.ended.wait()
        if not self.child.ended.is_set():
            _log.warning("sandbox_killed", pid=self.child.pid)
            await self.launcher.kill(self.child)
            with anyio.move_on_after(_END_SECONDS):
                await self.child.ended.wait()


class ProcessPlanner(Protocol):
    """The difference between one backend and another."""

    @property
    def overlays(self) -> bool:
        """True if it can plan sandboxes with images and snapshots from directories."""

    @property
    def begins_with_copies(self) -> bool:
        """True if it can plan sandboxes with a `RootFilesystem.copy`."""

    def capabilities(self) -> Mapping[str, str]:
        """Describes its isolation."""

    def plan(self, spec: SandboxSpec, stages: Sequence[str], resources: ExitStack) -> ProcessPlan:
        """Returns how to start a sandbox. May block for milliseconds; raises SandboxCreateError or OSError.

        Args:
            stages: Where the launcher shows the stage directories.
            resources: Closes the descriptors of the plan once the process has them.
        """


class ProcessBackend(AgentBackend):
    """Makes sandboxes of processes of this machine, for both kinds of isolation."""

    def __init__(
        self, settings: SandboxSettings, planner: ProcessPlanner, layout: GroupLayout | None, marker: str
    ) -> None:
        """Args:
        layout: Where control groups can be made.
        marker: Names the manager in group names and environments.
        """
        super().__init__(settings)
        self._planner = planner
        self._layout = layout
        self._marker = marker
        self._launcher: LauncherClient | None = None
        self._launching = anyio.Lock()
        self._takers = Takers()
        self._room = DescriptorRoom(self._takers)
        self._watches = EpollRoom(self._takers)

    def capabilities(self) -> Mapping[str, str]:
        """Describes its isolation, and its limits."""
        controllers = self._layout.controllers if self._layout is not None else {}
        isolated = self._planner.capabilities()
        processes = "set as RLIMIT_NPROC inside the sandbox's user namespace"
        if isolated["isolation"] == "none":
            processes = "not limited"
        return {
            **isolated,
            "cpu": "cpuset group" if "cpuset" in controllers else "affinity set from outside",
            "memory": "group, files in memory included" if "memory" in controllers else "RLIMIT_DATA of each process",
            "processes": "group" if "pids" in controllers else processes,
            "idle": "frozen by group" if self._layout is not None else "stopped by SIGSTOP",
            "stop": "the command's own processes"
            if self._layout is not None
            else "all processes of the sandbox, background ones too",
            "lanes": describe_lanes(
                self._layout, ranked=self._settings.core_sharing is CoreSharing.RANKED, by_process=True
            ),
            **limit_capabilities(self._layout),
            "socket_memory_hard": "yes" if bounds_socket_memory(self._layout) else "no",
        }

    @property
    def overlays(self) -> bool:
        """True if it can make sandboxes with images and snapshots from directories."""
        return self._planner.overlays

    @property
    def begins_with_copies(self) -> bool:
        """True if it can make sandboxes with a `RootFilesystem.copy`."""
        return self._planner.begins_with_copies

    @property
    def images(self) -> None:
        """It has none of its own."""

    async def close(self) -> None:
        """Ends the launcher, and with it whatever sandbox was not destroyed."""
        async with self._launching:
            if self._launcher is not None:
                await self._launcher.close()
                self._launcher = None

    async def _get_launcher(self) -> LauncherClient:
        """Returns the launcher; starts one at first and after it was killed."""
        async with self._launching:
            if self._launcher is not None and not self._launcher.alive:
                _log.warning("launcher_lost", manager_id=self._settings.manager_id)
                await self._launcher.close()
                self._launcher = None
            if self._launcher is None:
                self._launcher = await start_launcher(
                    self._marker,
                    self._settings.isolation,
                    [stage.source for stage in self._settings.stages],
                    self._room.make,
                )
            return self._launcher

    async def _create(self, spec: SandboxSpec, on_lost: Callable[[str], None]) -> AgentSandbox:
        launcher = await self._get_launcher()
        with ExitStack() as resources:
            plan, group = await self._blocking(self._prepare, spec, launcher.directories, resources)
            errors, errors_writer = os.pipe()
            resources.callback(os.close, errors)
            own, other = socket_pair()
            connection = AgentConnection(own, on_lost, self._room.make, self._watches.make)
            changes, report = ChangedFiles.reported(spec.root) if plan.process.overlays is not None else (None, None)
            try:
                with closing(other), ExitStack() as given:
                    given.callback(os.close, errors_writer)
                    if report is not None:
                        given.callback(report.close)
                    request = replace(
                        plan.process,
                        stderr=errors_writer,
                        groups=_entries(group, given),
                        inherited=[other.fileno(), *plan.process.inherited],
                        report=report.fileno() if report is not None else -1,
                    )
                    child = await launcher.spawn(request)
            except BaseException:
                connection.close("it could not be made")
                if changes is not None:
                    changes.close()
                with anyio.CancelScope(shield=True):
                    await self._blocking(_undo, plan, group)
                raise
            parts = SandboxParts(
                first_process=LaunchedProcess(launcher, child),
                pin=pin_tree,
                by_process=True,
                group=group,
                temporary=plan.temporary,
                agent_directory=plan.agent_directory,
                environment={**plan.environment, **proxy_environment(spec.network)},
                packages=plan.packages,
                limits=plan.limits,
                clean_up=plan.clean_up,
                threads=self._threads,
                copying=self._copying,
                changes=changes,
                confined_to=plan.confined_to,
                files_at=plan.files_at,
            )
            sandbox = AgentSandbox(spec, connection, parts)
            try:
                await self._until_serving(connection, errors)
                self._takers.add(sandbox, connection.pid)
                if plan.bounds is not None:
                    await launcher.settle(connection.pid, plan.bounds)
                if group is None or not group.pins_cores:
                    await sandbox.grant(spec.cores)
                await self._doors.open(sandbox)
            except BaseException:
                await sandbox.destroy()
                raise
            return sandbox

    def _prepare(
        self, spec: SandboxSpec, directories: Sequence[str], resources: ExitStack
    ) -> tuple[ProcessPlan, SandboxGroup | None]:
        """Blocks: plans the process and makes its groups."""
        plan = self._planner.plan(spec, directories, resources)
        if self._layout is None:
            return plan, None
        group: SandboxGroup | None = None
        try:
            name = f"{self._marker}-{spec.sandbox_id}"
            group = SandboxGroup.make(self._layout, name, spec.memory_mib, spec.max_processes)
            group.set_cores(spec.cores)
        except BaseException:
            _undo(plan, group)
            raise
        return plan, group

    async def _until_serving(self, connection: AgentConnection, errors: int) -> None:
        with anyio.move_on_after(_CREATE_SECONDS) as waiting:
            try:
                await connection.until_hello()
            except SandboxLostError as error:
                os.set_blocking(errors, False)
                try:
                    said = os.read(errors, _MOST_ERROR_BYTES).decode(errors="replace").strip()
                except BlockingIOError:
                    said = ""
                raise SandboxCreateError(forbidden_namespaces(said) or str(error)) from error
        if waiting.cancelled_caught:
            raise SandboxCreateError(f"its first process said nothing for {_CREATE_SECONDS:g} s")


def _entries(group: SandboxGroup | None, given: ExitStack) -> list[int]:
    """Opens the groups' entries; they are closed with `given`."""
    entries = group.open_entries() if group is not None else []
    for entry in entries:
        given.callback(os.close, entry)
    return entries


def _undo(plan: ProcessPlan, group: SandboxGroup | None) -> None:
    """Removes what was made for a sandbox that did not come to be."""
    if group is not None:
        group.remove()
    plan.clean_up()
