"""The sandboxes of a facade: each has an id, a client's metadata, and an end that is known when it begins."""

from __future__ import annotations

import importlib.resources
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum

import anyio
import anyio.abc
import structlog
from callsheet.client import CommandDefaults, Job
from callsheet.integrations.e2b.errors import ConnectCode, E2bError, E2bWords, gone, invalid, unsupported
from callsheet.integrations.e2b.filesystem import Filesystem
from callsheet.integrations.e2b.messages import ExecuteCode, ProcessConfig, StartProcess
from callsheet.integrations.e2b.processes import RemoteProcess, RemoteProcesses
from callsheet.integrations.e2b.settings import E2bSettings
from callsheet.integrations.sandboxes.remote import FacadeError, RemoteSandbox

# The scheduler's own end of a trajectory, for a facade that does not end it.
_SPARE_S = 300.0
_MOST_TEXT = 64 << 10
_log = structlog.get_logger(__name__)
_PLACE = "/tmp/.callsheet-e2b/code"
_PROGRAM = f"{_PLACE}/code_kernel.py"
_DEFAULT_CONTEXT = "default"


class AtEnd(Enum):
    """Fate of a sandbox when its time is over."""

    KILL = "kill"
    PAUSE = "pause"
    """It stands still until a client connects to it."""
    SLEEP = "sleep"
    """It stands still until the next request."""


@dataclass(slots=True)
class E2bSandbox:
    """One sandbox.

    Attributes:
        sandbox_id: Its id, which is its trajectory's too.
        template: As its client named it.
        metadata: What its client keeps with it.
        access_token: Opens this sandbox alone; None where nobody is asked for a token.
        started_at: When it was asked for.
        end_at: When it ends.
        remote: Where its commands run.
        processes: What runs in it.
        files: Its files.
        code: Executes Python code in it.
        life_s: Seconds that it lives once it is made or wakes by itself.
        at_end: What becomes of it when its time is over.
        idempotency_key: That its client made it with.
        paused: It stands still until it is resumed.
        lifetime: Cancelled to look at `end_at` anew.
        ended: It is given up.
        work: What is cancelled with the sandbox.
    """

    sandbox_id: str
    template: str
    metadata: Mapping[str, str]
    access_token: str | None
    started_at: datetime
    end_at: datetime
    remote: RemoteSandbox
    processes: RemoteProcesses
    files: Filesystem
    code: CodeInterpreter
    life_s: int
    at_end: AtEnd
    idempotency_key: str | None
    paused: bool = False
    lifetime: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: bool = False
    work: list[anyio.CancelScope] = field(default_factory=list)

    async def run(self, process: RemoteProcess) -> None:
        """Runs a process until it ends, or the sandbox does."""
        with self.until_end():
            await self.processes.run(process)

    @contextmanager
    def until_end(self) -> Iterator[None]:
        """Cancels the work in the block if the sandbox ends."""
        with anyio.CancelScope() as scope:
            if self.ended:
                scope.cancel()
            self.work.append(scope)
            try:
                yield
            finally:
                self.work.remove(scope)

    def end(self) -> None:
        """Cancels what is done for it."""
        self.ended = True
        self.lifetime.cancel()
        for scope in self.work:
            scope.cancel()

    def lives_until(self, end_at: datetime) -> None:
        """Sets the time at which it ends."""
        self.end_at = end_at
        self.lifetime.cancel()


class E2bSandboxes:
    """Makes sandboxes, finds them, and ends them when their time is over. All of it raises E2bError."""

    def __init__(self, job: Job, settings: E2bSettings, tasks: anyio.abc.TaskGroup, mark: str) -> None:
        """Args:
        job: Open; every sandbox is a trajectory of it.
        settings: Of the facade.
        tasks: Where sandboxes and their processes are followed.
        mark: In the ids of all sandboxes.
        """
        self._job = job
        self._settings = settings
        self.tasks = tasks
        self._mark = mark
        self._sandboxes: dict[str, E2bSandbox] = {}

    async def create(
        self,
        template: str,
        *,
        timeout_s: int | None,
        metadata: Mapping[str, str],
        variables: Mapping[str, str],
        at_end: AtEnd = AtEnd.KILL,
        idempotency_key: str | None = None,
    ) -> E2bSandbox:
        """Returns a new sandbox once it is ready.

        Args:
            template: The image, or the default template.
            timeout_s: Seconds that it is to live.
            metadata: To be kept with it.
            variables: Of all its commands.
            at_end: What becomes of it when its time is over.
            idempotency_key: A request that comes again gets the first one's sandbox.
        """
        found = self._made_with(idempotency_key)
        if found is None:
            found = self._begin(template, timeout_s, metadata, variables)
            found.at_end, found.idempotency_key = at_end, idempotency_key
            self.tasks.start_soon(self._live, found)
        try:
            await found.remote.ready()
        except FacadeError:
            self._sandboxes.pop(found.sandbox_id, None)
            found.lives_until(_now())
            raise
        return found

    def awake(self, sandbox: E2bSandbox) -> E2bSandbox:
        """Returns a sandbox for a request that it is to serve; raises E2bError if it is paused and does not wake."""
        if sandbox.paused and sandbox.at_end is not AtEnd.SLEEP:
            raise gone(sandbox.sandbox_id, "it is paused: connect resumes it")
        self.resume(sandbox, None)
        return sandbox

    def get(self, sandbox_id: str) -> E2bSandbox:
        """Returns a sandbox that is there; raises E2bError if it is not, or is lost."""
        found = self._sandboxes.get(sandbox_id)
        if found is None:
            raise gone(sandbox_id)
        if found.remote.fault is not None:
            raise gone(sandbox_id, str(found.remote.fault))
        return found

    def all(self) -> list[E2bSandbox]:
        """Returns those that are there."""
        return [each for each in self._sandboxes.values() if each.remote.fault is None]

    def set_timeout(self, sandbox: E2bSandbox, timeout_s: int | None, *, shortens: bool = True) -> None:
        """Sets how long a sandbox is to live from now on.

        Args:
            sandbox: The sandbox.
            timeout_s: Seconds; None leaves it as it is.
            shortens: Whether it may end earlier by that.
        """
        if timeout_s is None:
            return
        end_at = _now() + timedelta(seconds=self._checked(timeout_s))
        if shortens or end_at > sandbox.end_at:
            sandbox.lives_until(min(end_at, self._latest_end(sandbox)))

    def pause(self, sandbox: E2bSandbox) -> None:
        """Lets a sandbox stand still. It keeps its memory, and ends with the longest life of a sandbox."""
        if sandbox.paused:
            raise E2bError(ConnectCode.ALREADY_EXISTS, f"sandbox {sandbox.sandbox_id} is paused")
        sandbox.paused = True
        sandbox.remote.pause()
        sandbox.lives_until(self._latest_end(sandbox))
        _log.info("sandbox_paused", trajectory_id=sandbox.sandbox_id)

    def resume(self, sandbox: E2bSandbox, timeout_s: int | None) -> None:
        """Wakes a sandbox, which then lives for so many seconds; None for as many as before. Nothing if it is awake."""
        if not sandbox.paused:
            return
        self.set_timeout(sandbox, sandbox.life_s if timeout_s is None else timeout_s)
        sandbox.paused = False
        sandbox.remote.resume()
        _log.info("sandbox_resumed", trajectory_id=sandbox.sandbox_id)

    async def kill(self, sandbox_id: str) -> None:
        """Ends a sandbox."""
        sandbox = self._sandboxes.pop(sandbox_id, None)
        if sandbox is None:
            raise gone(sandbox_id)
        await self._end(sandbox)

    def _begin(
        self,
        template: str,
        timeout_s: int | None,
        metadata: Mapping[str, str],
        variables: Mapping[str, str],
    ) -> E2bSandbox:
        settings = self._settings
        if len(self._sandboxes) >= settings.max_sandboxes:
            raise E2bError(
                ConnectCode.RESOURCE_EXHAUSTED, f"{settings.max_sandboxes} sandboxes are open, and no more may be"
            )
        _check_size("metadata", metadata)
        _check_size("envVars", variables)
        life_s = self._checked(settings.timeout_s if timeout_s is None else timeout_s)
        sandbox_id = f"sb{self._mark}{secrets.token_hex(8)}"
        longest_s = settings.longest_timeout_s + _SPARE_S
        trajectory = self._job.trajectory(sandbox_id, idle_timeout_s=longest_s, deadline_s=longest_s)
        request = settings.sandbox
        if template and template not in settings.default_templates:
            request = replace(request, image=template)
        defaults = CommandDefaults(user=settings.user, working_directory=settings.working_directory)
        remote = RemoteSandbox(trajectory, request, E2bWords(sandbox_id), defaults)
        processes = RemoteProcesses(remote, dict(variables), settings.most_processes, lambda: gone(sandbox_id))
        files = Filesystem(remote, processes)
        now = _now()
        sandbox = E2bSandbox(
            sandbox_id=sandbox_id,
            template=template or settings.default_templates[0],
            metadata=dict(metadata),
            access_token=secrets.token_hex(24) if settings.auth_token is not None else None,
            started_at=now,
            end_at=now + timedelta(seconds=life_s),
            remote=remote,
            processes=processes,
            files=files,
            code=CodeInterpreter(files),
            life_s=life_s,
            at_end=AtEnd.KILL,
            idempotency_key=None,
        )
        self._sandboxes[sandbox_id] = sandbox
        return sandbox

    async def _live(self, sandbox: E2bSandbox) -> None:
        """Makes a sandbox, and ends it when its time is over."""
        with sandbox.until_end():
            await sandbox.remote.begin()
        while not sandbox.ended and (left_s := self._left_s(sandbox)) > 0:
            sandbox.lifetime = anyio.CancelScope()
            with sandbox.lifetime:
                await anyio.sleep(left_s)
        if self._sandboxes.pop(sandbox.sandbox_id, None) is not None:
            _log.info("sandbox_timed_out", trajectory_id=sandbox.sandbox_id)
        await self._end_quietly(sandbox)

    def _left_s(self, sandbox: E2bSandbox) -> float:
        """Returns the seconds until a sandbox ends; one whose time is over is paused, if its client wants that."""
        if sandbox.end_at <= _now() and sandbox.at_end is not AtEnd.KILL and not sandbox.paused:
            self.pause(sandbox)
        return (sandbox.end_at - _now()).total_seconds()

    def _latest_end(self, sandbox: E2bSandbox) -> datetime:
        return sandbox.started_at + timedelta(seconds=self._settings.longest_timeout_s)

    async def _end(self, sandbox: E2bSandbox) -> None:
        if sandbox.ended:
            return
        sandbox.end()
        await sandbox.remote.end()

    async def _end_quietly(self, sandbox: E2bSandbox) -> None:
        try:
            await self._end(sandbox)
        except FacadeError as fault:
            _log.warning("sandbox_left_open", trajectory_id=sandbox.sandbox_id, reason=str(fault))

    def _made_with(self, idempotency_key: str | None) -> E2bSandbox | None:
        if idempotency_key is None:
            return None
        return next((each for each in self._sandboxes.values() if each.idempotency_key == idempotency_key), None)

    def _checked(self, timeout_s: int) -> int:
        longest_s = self._settings.longest_timeout_s
        if not 0 <= timeout_s <= longest_s:
            raise invalid("timeout", timeout_s, f"must be 0 to {longest_s} seconds")
        return timeout_s


def _check_size(field_name: str, texts: Mapping[str, str]) -> None:
    size = sum(len(name) + len(text) for name, text in texts.items())
    if size > _MOST_TEXT:
        raise invalid(field_name, f"{size} characters", f"must have at most {_MOST_TEXT}")


def _now() -> datetime:
    return datetime.now(UTC)


class CodeInterpreter:
    """Makes executions of code into processes of the sandbox."""

    def __init__(self, files: Filesystem) -> None:
        """Args: files: Of the sandbox."""
        self._files = files
        self._copied = False

    async def process(self, asked: ExecuteCode) -> StartProcess:
        """Returns the process that executes code, and prints what comes of it.

        Raises:
            E2bError: It is not Python's, or its context is another one than that of the sandbox.
        """
        if asked.language not in {None, "python"}:
            raise unsupported(f"run_code in {asked.language}")
        if asked.context_id not in {None, _DEFAULT_CONTEXT}:
            raise unsupported("contexts of code")
        if not self._copied:
            await self._files.write(_PROGRAM, _source())
            self._copied = True
        request = f"{_PLACE}/{secrets.token_hex(6)}.json"
        content = {"code": asked.code, "env_vars": asked.env_vars or {}}
        await self._files.write(request, json.dumps(content).encode())
        program = ProcessConfig(cmd="python3", args=[_PROGRAM, _PLACE, request])
        return StartProcess(process=program, stdin=False)


def _source() -> bytes:
    return importlib.resources.files(__package__ or "").joinpath("code_kernel.py").read_bytes()
