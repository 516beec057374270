"""Callsheet's sandboxes for Harbor's own runner: `harbor run --env callsheet.integrations.harbor:CallsheetEnvironment`.

It needs Harbor 0.26 on Python 3.12 or later, and of Callsheet the client alone.
"""

from __future__ import annotations

import asyncio
import io
import secrets
from pathlib import Path
from typing import Any, Final

from callsheet.client import Command, ImageBuild, NotSucceededError, Reason, SandboxFile, TrajectoryEnd
from callsheet.environments.failures import failure_of
from callsheet.environments.harbor.folders import archive_of
from callsheet.integrations.borrowed_sandbox import (
    BorrowedSandbox,
    BorrowedSandboxSettings,
    ProgramEnd,
    client_of,
    program_end,
)
from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import (
    COMPOSE_FILE_NAME,
    require_agent_environment_definition,
    should_use_prebuilt_docker_image,
)
from harbor.environments.options import EnvironmentOptions
from harbor.environments.tar_transfer import extract_dir, tar_pack_succeeded
from harbor.models.trial.config import ResourceMode
from pydantic import Field

# Harbor ends what takes too long itself; this ends what it has forgotten.
_LONGEST_S: Final = 86_400.0
_MOST_OUTPUT: Final = 16 << 20
_JOB: Final = f"harbor-{secrets.token_hex(4)}"
_BASH: Final = 'command -v bash >/dev/null && exec bash -c "$1"; exec sh -c "$1"'
_PACK: Final = 'tar -c -f "$2" -C "$1" .'


class CallsheetOptions(EnvironmentOptions):
    """Options that `--ek NAME=VALUE` may set."""

    scheduler: str = Field(default="", description="Its address, host:port; empty takes CALLSHEET_SCHEDULER.")
    job: str = Field(default=_JOB, description="The job of all sandboxes; by default one of this process alone.")
    user: str = Field(default="", description="Whom all commands run as; empty takes the image's user.")
    network: list[str] | None = Field(default=None, description="What tasks with the internet may reach, host:port.")


class CallsheetEnvironment(BaseEnvironment):
    """The sandbox of one trial: a trajectory of its own. Its image is the task's, or is built of its Dockerfile."""

    options_model = CallsheetOptions
    _sandbox: BorrowedSandbox | None = None

    @staticmethod
    def type() -> str:
        """Its name in Harbor's messages."""
        return "callsheet"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Returns its abilities beyond files and commands: a network that reaches nothing, or only named hosts."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Commands have whole cores of their own while they run; memory is bounded, and kept where it is asked for."""
        return EnvironmentResourceCapabilities(cpu_limit=True, cpu_request=True, memory_limit=True, memory_request=True)

    def _validate_definition(self) -> None:
        """Raises FileNotFoundError where the task has neither an image nor a Dockerfile."""
        require_agent_environment_definition(self.environment_dir, docker_image=self.task_env_config.docker_image)

    async def start(self, force_build: bool) -> None:
        """Makes the sandbox; its wait in the queue counts as Harbor's time for the build.

        Args:
            force_build: Build the Dockerfile also where the task names an image. What was built of the same content
                is taken as it is.

        Raises:
            ValueError: The task, or the trial's settings, need what sandboxes do not have. It fails this trial alone.
            SandboxBuildFailedError: The Dockerfile does not build.
            NotSucceededError: There is no sandbox for another reason.
        """
        self._refuse_unsupported()
        settings = await asyncio.to_thread(self._settings, force_build)
        job = await client_of(self.options.scheduler).open_job(self.options.job)
        trajectory = job.trajectory(f"{self.session_id[:200]}.{secrets.token_hex(4)}")
        self._sandbox = BorrowedSandbox(trajectory, settings)
        try:
            await self._sandbox.make()
        except NotSucceededError as error:
            failure = failure_of(error)
            if failure is not None and failure.reason == Reason.IMAGE_BUILD_FAILED.value:
                raise SandboxBuildFailedError(str(failure)) from error
            raise
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Ends the sandbox. One that is not to be deleted lives until its job ends, soon after this process does."""
        if self._sandbox is None:
            return
        if not delete:
            self.logger.warning(f"trajectory {self._sandbox.trajectory.trajectory_id} is left to end with its job")
            return
        await self._sandbox.close(TrajectoryEnd.COMPLETED)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a command by bash, or by sh where there is no bash. One that ran out of time has the exit code 124.

        Raises:
            ValueError: It is to run as another user than the sandbox has.
            NotSucceededError: The service failed; that says nothing of the command.
        """
        sandbox = self._live()
        wanted = self._resolve_user(user)
        if wanted is not None and str(wanted) not in await sandbox.own_user():
            own = " or ".join(map(repr, await sandbox.own_user()))
            raise _refusal("user", f"{wanted!r}: must be {own}, the sandbox's one user; --ek user=NAME takes another")
        end = await self._run(
            *("sh", "-c", _BASH, "sh", command),
            environment=self._merge_env(env),
            working_directory=cwd or self.task_env_config.workdir or "",
            timeout_s=timeout_sec or _LONGEST_S,
        )
        return ExecResult(stdout=end.stdout, stderr=end.stderr, return_code=end.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Writes a file with its permissions, and the directories above it."""
        await self._upload(await asyncio.to_thread(_file_of, Path(source_path), target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Writes what is in a directory, links and empty directories included."""
        archive = await asyncio.to_thread(archive_of, Path(source_dir))
        await self._upload(SandboxFile(target_dir, archive, unpack=True))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Reads a file; raises the OSError that says why it cannot be read."""
        content = await self._live().read(source_path)
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(target.write_bytes, content)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Reads what is in a directory, by the image's tar.

        Raises:
            RuntimeError: It cannot be packed.
        """
        place = f"/tmp/.callsheet-{secrets.token_hex(8)}.tar"
        try:
            end = await self._run("sh", "-c", _PACK, "sh", source_dir, place)
            if not tar_pack_succeeded(end.exit_code, stderr=end.stderr, logger=self.logger):
                raise RuntimeError(f"download_dir: {source_dir!r}: exit code {end.exit_code}: {end.stderr.strip()}")
            packed = io.BytesIO(await self._live().read(place))
        finally:
            await self._run("rm", "-f", place)
        await asyncio.to_thread(extract_dir, packed, target_dir)

    def _refuse_unsupported(self) -> None:
        if (self.environment_dir / COMPOSE_FILE_NAME).exists():
            raise _refusal(COMPOSE_FILE_NAME, "a sandbox is one container, of an image or a Dockerfile")
        if self._host_mounts:
            raise _refusal("mounts", "a sandbox has no directories of the host; upload them")
        if self._network_is_public and self.options.network is None:
            places = '--ek \'network=["*:443", "*:80"]\', or --ek network=[] for none'
            raise _refusal("network_mode", f"the task has the internet; say which places it may reach: {places}")

    def _settings(self, force_build: bool) -> BorrowedSandboxSettings:
        """Blocks: returns what the task says of its sandbox."""
        task = self.task_env_config
        image = task.docker_image or ""
        build = None
        if not should_use_prebuilt_docker_image(self.environment_dir, docker_image=image, force_build=force_build):
            image, build = "", ImageBuild(archive_of(self.environment_dir), timeout_s=task.build_timeout_sec)
        hosts = [f"{host}:{port}" for host in self._network_policy.allowed_hosts for port in (443, 80)]
        memory_mib = self._effective_memory_mb
        kept = self._resource_request_value("memory", auto_mode=ResourceMode.LIMIT) is not None
        return BorrowedSandboxSettings(
            image=image,
            build=build,
            cpu=self._effective_cpus or 1,
            network=self.options.network or () if self._network_is_public else hosts,
            making_s=_LONGEST_S,
            memory_mib=memory_mib,
            memory="guaranteed" if kept else None,
            disk_mib=max(1, min(self._effective_storage_mb or memory_mib, memory_mib // 2)) if memory_mib else None,
            user=self.options.user,
            max_output_bytes=_MOST_OUTPUT,
            command_s=_LONGEST_S,
        )

    async def _upload(self, file: SandboxFile) -> None:
        (await self._live().step(Command.argv("sh", "-c", ":"), files=[file], label="upload")).unwrap()

    async def _run(self, *words: str, timeout_s: float | None = None, **about: Any) -> ProgramEnd:
        command = Command.argv(*words, max_output_bytes=_MOST_OUTPUT, **about)
        return program_end(await self._live().step(command, timeout_s, label="harbor"))

    def _live(self) -> BorrowedSandbox:
        if self._sandbox is None:
            raise RuntimeError("the environment has not been started")
        return self._sandbox


def _refusal(name: str, rule: str) -> ValueError:
    return ValueError(f"callsheet: {name}: {rule}")


def _file_of(source: Path, target: str) -> SandboxFile:
    return SandboxFile(target, source.read_bytes(), mode=source.stat().st_mode & 0o777)
