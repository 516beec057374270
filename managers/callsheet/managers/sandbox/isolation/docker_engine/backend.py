"""Makes sandboxes in containers of a Docker engine."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import anyio
import anyio.to_thread
import structlog
from anyio.lowlevel import checkpoint_if_cancelled
from callsheet.managers.open_files import raise_open_files
from callsheet.managers.sandbox.agent_client.client import AgentConnection
from callsheet.managers.sandbox.agent_client.parts import SandboxParts
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.cgroups import SandboxGroup, form_of, limit_capabilities
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.files.images.errors import ImageError
from callsheet.managers.sandbox.files.images.source import PreparedImage
from callsheet.managers.sandbox.files.root_filesystem import TEMPORARY
from callsheet.managers.sandbox.isolation.agent_backend import AgentBackend
from callsheet.managers.sandbox.isolation.docker_engine.container import (
    AGENT_INSIDE,
    ASKING_FILTER_NAME,
    FILTER_NAME,
    MANAGER_LABEL,
    SANDBOX_LABEL,
    SOCKET_NAME,
    ContainerPlan,
    command_defaults,
    plan_container,
    stages_inside,
)
from callsheet.managers.sandbox.isolation.docker_engine.engine import DockerEngine
from callsheet.managers.sandbox.isolation.docker_engine.groups import adopt_container, container_layout
from callsheet.managers.sandbox.network.destinations import network_words
from callsheet.managers.sandbox.network.doors import proxy_environment
from callsheet.managers.sandbox.node_sharing.lanes import describe_lanes
from callsheet.managers.sandbox.settings import CoreSharing, SandboxSettings
from callsheet.managers.sandbox.walls.asking_filter import build_asking_filter
from callsheet.managers.sandbox.walls.landlock import landlock_capabilities
from callsheet.managers.sandbox.walls.pool_users import UserPool
from callsheet.managers.sandbox.walls.seccomp import Unbounded, UnsupportedArchitectureError, build_filter
from docker.models.containers import Container

_CREATE_SECONDS = 60.0
_LOOK_SECONDS = 0.5


class EngineImages:
    """Implements `images.source.ImageSource`: every image that is on the engine is ready, and nothing is downloaded."""

    def __init__(self, engine: DockerEngine, threads: anyio.CapacityLimiter) -> None:
        """Blocks: asks for the images that are there.

        Args:
            engine: It has them.
            threads: Bounds the calls at once.
        """
        self._engine = engine
        self._threads = threads
        self._names = engine.image_names()

    @property
    def takes_any_name(self) -> bool:
        """No: the engine's images that came later are asked for by the service of all sandboxes."""
        return False

    def setups_s(self) -> Mapping[str, float]:
        """0 for each of the images that were there at the start."""
        return dict.fromkeys(self._names, 0.0)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Nothing is prepared, so nothing changes."""

    async def prepare(self, name: str, stop: anyio.Event) -> PreparedImage:
        """Returns an image by its id, as its name may be given to another one at any time.

        Raises:
            ImageError: It is not on the engine.
        """
        try:
            digest = await anyio.to_thread.run_sync(self._engine.image_id, name, limiter=self._threads)
        except SandboxCreateError as error:
            raise ImageError(str(error)) from error
        return PreparedImage(digest, digest)


_log = structlog.get_logger(__name__)


class RunningContainer:
    """A container whose first process is the agent."""

    def __init__(self, engine: DockerEngine, container: Container, threads: anyio.CapacityLimiter) -> None:
        """Args: container: Just started."""
        self._engine = engine
        self._container = container
        self._threads = threads

    @property
    def ends_alone(self) -> bool:
        """The engine is not asked: it may be gone together with it."""
        return True

    async def ran_out_of_memory(self) -> bool:
        """Asks the engine: the container's groups are gone with it."""
        try:
            return await anyio.to_thread.run_sync(
                self._engine.ran_out_of_memory, self._container, limiter=self._threads
            )
        except SandboxCreateError as error:
            _log.warning("container_end_not_told", container=self._container.name, error=str(error))
            return False

    async def finish(self) -> None:
        """Removes it, which kills what is inside. A refusal is logged; the manager's next start tries again."""
        try:
            await anyio.to_thread.run_sync(self._engine.remove, self._container, limiter=self._threads)
        except SandboxCreateError as error:
            _log.warning("container_not_removed", container=self._container.name, error=str(error))


class _Place:
    """Place of a sandbox on this side: a pool user, and a directory that its container sees. All methods block."""

    def __init__(self, directory: Path, users: UserPool) -> None:
        """Takes a user; raises SandboxCreateError when there is none."""
        self.directory = directory
        self.uid = users.take()
        self._users = users

    def open(self, seccomp_filter: bytes) -> socket.socket:
        """Makes the directory; returns the socket that the agent is to connect to."""
        self.directory.mkdir(parents=True)
        self.directory.chmod(0o755)
        filters = {FILTER_NAME: seccomp_filter, ASKING_FILTER_NAME: build_asking_filter(memory=False)}
        for name, content in filters.items():
            (self.directory / name).write_bytes(content)
            (self.directory / name).chmod(0o444)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened = os.open(self.directory, os.O_PATH | os.O_DIRECTORY)
        try:
            # By descriptor, as the path of a socket must be short.
            path = f"/proc/self/fd/{opened}/{SOCKET_NAME}"
            listener.bind(path)
            os.chmod(path, 0o666)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            listener.listen(1)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        finally:
            os.close(opened)
        return listener

    def remove(self) -> None:
        """Removes the directory and gives the user back."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._users.give_back(self.uid)


class DockerBackend(AgentBackend):
    """Makes sandboxes in containers of one engine."""

    def __init__(self, settings: SandboxSettings, directory: Path, marker: str) -> None:
        """Finds the engine, and removes what an earlier process of this manager left there. Blocks.

        Args:
            directory: Where the sockets of sandboxes are made.
            marker: Names the manager in the names and labels of containers.

        Raises:
            SandboxCreateError: No engine answers, or this machine has no seccomp table.
        """
        super().__init__(settings)
        raise_open_files()
        self._directory = directory
        self._marker = marker
        self._engine = DockerEngine()
        self._version = self._engine.describe()
        self._users = UserPool.of_manager(settings.manager_id)
        self._ranked = settings.core_sharing is CoreSharing.RANKED
        try:
            frozen = settings.use_control_groups and container_layout(os.getpid()) is not None
            # The engine's cpuset is one that nothing inside can leave.
            self._filter = build_filter(forbid_affinity=False, unbounded=Unbounded(waking=not frozen))
        except UnsupportedArchitectureError as error:
            raise SandboxCreateError(str(error)) from error
        self._images = EngineImages(self._engine, self._threads)
        removed = self._engine.remove_labelled({MANAGER_LABEL: marker})
        if removed:
            _log.info("leftovers_removed", marker=marker, containers=removed)

    @property
    def overlays(self) -> bool:
        """Images are the engine's own."""
        return False

    @property
    def begins_with_copies(self) -> bool:
        """Its directories are mounted by the engine."""
        return False

    @property
    def images(self) -> EngineImages:
        """The engine's images."""
        return self._images

    def capabilities(self) -> Mapping[str, str]:
        """Describes the isolation and the limits of containers."""
        layout = container_layout(os.getpid()) if self._settings.use_control_groups else None
        grouped = layout is not None
        return {
            **limit_capabilities(layout),
            "isolation": "docker",
            "engine": self._version,
            "user": "a pool user for each sandbox, without capabilities",
            "network": network_words(self._settings.network),
            "images": f"the engine's, read-only; by default {self._settings.docker_image or 'none'}",
            "filesystem": "image read-only; working and temporary directories in memory, sized",
            "seccomp": "the engine's filter; also refuses tracing, kernel interfaces and foreign socket families",
            # The agent finds out whether the engine's filter lets it, for each sandbox.
            **landlock_capabilities(),
            "cpu": "cpuset group" if grouped else "cpuset by the engine's update",
            "memory": "group, files in memory included",
            "processes": "group",
            "idle": "frozen by group" if grouped else "stopped by SIGSTOP",
            "stop": "the command's own processes" if grouped else "all processes of the sandbox, background ones too",
            "lanes": describe_lanes(layout, ranked=self._ranked, by_process=False),
            "cgroups": form_of(layout).value if grouped else "docker",
            "hard_cpuset": "yes",
            "memory_hard": "yes",
            "pids_hard": "yes",
        }

    async def close(self) -> None:
        """Closes the connections to the engine."""
        await self._blocking(self._engine.close)

    async def _create(self, spec: SandboxSpec, on_lost: Callable[[str], None]) -> AgentSandbox:
        image = spec.root.image or self._settings.docker_image
        if not image:
            raise SandboxCreateError("image: '': an env_reset must name one, as this manager has no default image")
        environment = dict(await self._blocking(self._engine.image_environment, image))
        place = _Place(self._directory / spec.sandbox_id, self._users)
        try:
            with closing(await self._blocking(place.open, self._filter)) as listener:
                container = await self._start(self._plan(spec, image, place))
                try:
                    connection = await self._connect(listener, container, on_lost)
                    environment |= proxy_environment(spec.network)
                    parts = await self._parts(connection, container, environment, place, spec.memory_mib)
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await RunningContainer(self._engine, container, self._threads).finish()
                    raise
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._blocking(place.remove)
            raise
        sandbox = AgentSandbox(spec, connection, parts)
        try:
            await self._doors.open(sandbox)
        except BaseException:
            await sandbox.destroy()
            raise
        return sandbox

    async def _start(self, plan: ContainerPlan) -> Container:
        """Starts a container; a cancel waits for the engine's answer, so that none is left without an owner."""
        with anyio.CancelScope(shield=True):
            container = await self._blocking(self._engine.start, plan)
        try:
            await checkpoint_if_cancelled()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._blocking(self._engine.remove, container)
            raise
        return container

    async def _connect(
        self, listener: socket.socket, container: Container, on_lost: Callable[[str], None]
    ) -> AgentConnection:
        """Returns the connection to an agent that said hello."""
        connection = AgentConnection(await self._until_connected(listener, container), on_lost)
        try:
            with anyio.fail_after(_CREATE_SECONDS):
                await connection.until_hello()
            if connection.pid != self._engine.first_pid(container):
                raise SandboxCreateError("the engine's processes are not visible here: both must share a process space")
        except TimeoutError as error:
            connection.close("it could not be made")
            raise SandboxCreateError(f"its first process said nothing for {_CREATE_SECONDS:g} s") from error
        except BaseException:
            connection.close("it could not be made")
            raise
        return connection

    async def _parts(
        self,
        connection: AgentConnection,
        container: Container,
        environment: Mapping[str, str],
        place: _Place,
        memory_mib: int,
    ) -> SandboxParts:
        stages = stages_inside([stage.source for stage in self._settings.stages])
        on_path = [path for stage, path in zip(self._settings.stages, stages, strict=True) if stage.on_python_path]
        return SandboxParts(
            first_process=RunningContainer(self._engine, container, self._threads),
            pin=lambda _, cores: self._engine.set_cores(container, sorted(cores)),
            by_process=False,
            group=await self._blocking(self._groups, connection.pid, memory_mib),
            temporary=TEMPORARY,
            agent_directory=AGENT_INSIDE,
            environment=command_defaults(environment, on_path),
            packages=on_path,
            limits={},
            clean_up=place.remove,
            threads=self._threads,
            copying=self._copying,
        )

    def _groups(self, first_pid: int, memory_mib: int) -> SandboxGroup | None:
        """Blocks."""
        if not self._settings.use_control_groups:
            return None
        return adopt_container(first_pid, memory_mib, with_cpu_tree=self._ranked)

    def _plan(self, spec: SandboxSpec, image: str, place: _Place) -> ContainerPlan:
        return plan_container(
            spec,
            name=f"{self._marker}-{spec.sandbox_id}",
            image=image,
            uid=place.uid,
            directory=place.directory,
            stages=[stage.source for stage in self._settings.stages],
            labels={MANAGER_LABEL: self._marker, SANDBOX_LABEL: spec.sandbox_id},
        )

    async def _until_connected(self, listener: socket.socket, container: Container) -> socket.socket:
        """Returns the agent's socket. Only one is taken, before anything else can run inside.

        Raises:
            SandboxCreateError: The container ended before, or said nothing.
        """
        deadline = anyio.current_time() + _CREATE_SECONDS
        while anyio.current_time() < deadline:
            with anyio.move_on_after(_LOOK_SECONDS):
                await anyio.wait_readable(listener)
                accepted, _ = listener.accept()
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                accepted.setblocking(False)
                return accepted
            if not await self._blocking(self._engine.is_running, container):
                said = await self._blocking(self._engine.last_words, container)
                raise SandboxCreateError(said or "its first process ended before it could serve")
        raise SandboxCreateError(f"its first process did not connect for {_CREATE_SECONDS:g} s")
