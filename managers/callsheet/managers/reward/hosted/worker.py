"""A worker process as its manager sees it: asked by messages, and dead at some time."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import structlog
from callsheet.managers.reward.hosted import frames

log = structlog.get_logger(__name__)

# Its directory is not where it imports from.
_COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("worker_process.py")))
_START_TIMEOUT_S = 300.0
_END_TIMEOUT_S = 5.0
# One arena of malloc for both threads, and large blocks given back at once: memory stays where it is counted.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "1048576",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
}


class WorkerDiedError(Exception):
    """The worker is gone, and with it what was asked of it."""


class WorkerRefusedError(Exception):
    """The worker lives and could not do what it was asked; `kind` is "failed" or "out_of_memory"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Question:
    """A question that waits for an answer."""

    __slots__ = ("answer", "done")

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.answer: dict[str, Any] | None = None


class WorkerProcess:
    """A process of `worker_process`. Must be used from one event loop, with `serve` running."""

    def __init__(self, name: str, hello: Mapping[str, Any], files: Sequence[int]) -> None:
        """Takes what it will be told first.

        Args:
            name: For the log.
            hello: Its first message.
            files: Descriptors that it inherits.
        """
        self.name = name
        self.pid: int | None = None
        self._hello = hello
        self._files = files
        self._asked: dict[int, _Question] = {0: _Question()}
        self._process: anyio.abc.Process | None = None
        self._writing = anyio.Lock()
        self._dead = False
        self._next_id = 0

    @property
    def alive(self) -> bool:
        """Returns whether the worker can be asked."""
        return self._process is not None and not self._dead

    async def serve(self, ready: anyio.Event) -> int:
        """Runs the process to its end, and kills it when cancelled; returns its exit code.

        Args:
            ready: Set once it answers.
        """
        command = list(_COMMAND)
        environment = os.environ | _ENVIRONMENT
        process = await anyio.open_process(
            command, stderr=None, env=environment, pass_fds=self._files, start_new_session=True
        )
        self._process, self.pid = process, process.pid
        log.info("reward worker started", worker=self.name, pid=process.pid)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._greet, ready)
                await self._listen(process)
                tasks.cancel_scope.cancel()
            return await process.wait()
        finally:
            self._give_up()
            with anyio.CancelScope(shield=True), anyio.move_on_after(_END_TIMEOUT_S):
                if process.returncode is None:
                    process.kill()
                await process.aclose()

    async def ask(self, do: str, timeout_s: float, **values: Any) -> dict[str, Any]:
        """Sends a message and returns its answer.

        Raises:
            WorkerDiedError: It is gone, or silent for too long, after which it is killed.
            WorkerRefusedError: It could not do it.
        """
        if not self.alive:
            raise WorkerDiedError(f"worker {self.name} is not there")
        self._next_id += 1
        number = self._next_id
        question = self._asked[number] = _Question()
        try:
            with anyio.fail_after(timeout_s):
                await self._write({"id": number, "do": do, **values})
                await question.done.wait()
        except TimeoutError:
            self.kill()
            raise WorkerDiedError(f"worker {self.name} was silent for {timeout_s:g} s and is killed") from None
        finally:
            self._asked.pop(number, None)
        if question.answer is None:
            raise WorkerDiedError(f"worker {self.name} died")
        if "error" in question.answer:
            raise WorkerRefusedError(question.answer["error"], question.answer["message"])
        return question.answer

    def kill(self) -> None:
        """Ends the process at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _greet(self, ready: anyio.Event) -> None:
        try:
            with anyio.fail_after(_START_TIMEOUT_S):
                await self._write(self._hello)
                await self._asked[0].done.wait()
            if not self._dead:
                ready.set()
        except (TimeoutError, WorkerDiedError):
            self.kill()

    async def _write(self, message: frames.Message) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        body = frames.encode(message)
        try:
            # A message that is half written would spoil all that follow.
            with anyio.CancelScope(shield=True):
                async with self._writing:
                    await self._process.stdin.send(body)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise WorkerDiedError(f"worker {self.name} died") from error

    async def _listen(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        waiting = bytearray()
        try:
            async for chunk in process.stdout:
                waiting += chunk
                while (body := _next_body(waiting)) is not None:
                    answer = frames.decode(body)
                    if (question := self._asked.get(answer["id"])) is not None:
                        question.answer = answer
                        question.done.set()
        except anyio.BrokenResourceError:
            log.info("pipe of a reward worker broke", worker=self.name)
        self._give_up()

    def _give_up(self) -> None:
        self._dead = True
        for question in self._asked.values():
            question.done.set()


def _next_body(waiting: bytearray) -> bytes | None:
    """Takes the first message out of what was read, if it is whole."""
    if len(waiting) < frames.LENGTH.size:
        return None
    (size,) = frames.LENGTH.unpack_from(waiting)
    end = frames.LENGTH.size + size
    if len(waiting) < end:
        return None
    body = bytes(waiting[frames.LENGTH.size : end])
    del waiting[:end]
    return body
