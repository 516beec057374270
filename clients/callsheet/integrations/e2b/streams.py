"""Output of a process, on its way from the steps that follow it to the clients that read it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from typing import Literal

import anyio
from callsheet.client import CommandResult, OutputChunk, OutputStream
from callsheet.integrations.e2b.errors import ConnectCode, E2bError
from callsheet.integrations.e2b.messages import KEEP_ALIVE, Body, data_event

MOST_UNREAD_BYTES = 32 << 20
"""Most unread bytes of one reader; a reader that leaves more unread gets an error, and nothing further."""

_LONGEST_EVENT = 64 << 10


class SliceOutput:
    """One output of one slice: first what comes while it runs, then what of it is in the result alone. Pure."""

    def __init__(self) -> None:
        self._taken = 0
        self._whole = True

    def live(self, chunk: OutputChunk) -> bytes:
        """Returns what is new in a part; nothing after a gap, as the rest comes with the result."""
        if chunk.offset > self._taken:
            self._whole = False
        if not self._whole:
            return b""
        new = chunk.content[self._taken - chunk.offset :]
        self._taken += len(new)
        return new

    def rest(self, content: bytes) -> bytes:
        """Returns what was not taken yet of all that the slice printed."""
        new = content[self._taken :]
        self._taken = max(self._taken, len(content))
        return new


class PidLine:
    """The first line of a process's standard output, which is its id. Pure.

    Attributes:
        pid: None until the line is there.
    """

    def __init__(self) -> None:
        self.pid: int | None = None
        self._begin = b""

    def strip(self, content: bytes) -> bytes:
        """Returns what of a part is not of that line."""
        if self.pid is not None:
            return content
        line, newline, rest = (self._begin + content).partition(b"\n")
        self._begin = line
        if newline and line.isdigit():
            self.pid = int(line)
        return rest


class ProcessReader:
    """Output that one client has not read yet."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Body, int]] = deque()
        self._bytes = 0
        self._error: E2bError | None = None
        self._ended = False
        self._changed = anyio.Event()

    def put(self, event: Body, size: int) -> None:
        """Takes an event of so many bytes."""
        if self._ended:
            return
        self._waiting.append((event, size))
        self._bytes += size
        if self._bytes > MOST_UNREAD_BYTES:
            self._waiting.clear()
            message = f"more than {MOST_UNREAD_BYTES} bytes of output were left unread"
            self.end(E2bError(ConnectCode.RESOURCE_EXHAUSTED, message))
        self._changed.set()

    def end(self, error: E2bError | None = None) -> None:
        """Nothing more comes."""
        if not self._ended:
            self._ended, self._error = True, error
        self._changed.set()

    async def events(self, keep_alive_s: float, deadline: float) -> AsyncGenerator[Body]:
        """Yields events until the end, and a sign of life wherever nothing has come for a while.

        Args:
            keep_alive_s: How long nothing may come.
            deadline: When to end, by anyio's clock.

        Raises:
            E2bError: How the process ended, if that is an error, or that the deadline has passed.
        """
        while True:
            while self._waiting:
                event, size = self._waiting.popleft()
                self._bytes -= size
                yield event
            if self._ended:
                break
            now = anyio.current_time()
            if now >= deadline:
                raise E2bError(ConnectCode.DEADLINE_EXCEEDED, "the command ran longer than its timeout")
            self._changed = anyio.Event()
            with anyio.move_on_after(min(keep_alive_s, deadline - now)) as waiting:
                await self._changed.wait()
            if waiting.cancelled_caught and anyio.current_time() < deadline:
                yield KEEP_ALIVE
        if self._error is not None:
            raise self._error.with_traceback(None)


class ProcessOutput:
    """The output of one process, for all who read it."""

    def __init__(self) -> None:
        self.pid = PidLine()
        self.stdout_bytes = 0
        self.stderr_bytes = 0
        self._slice = {stream: SliceOutput() for stream in OutputStream}
        self._readers: list[ProcessReader] = []

    def read(self) -> ProcessReader:
        """Returns a reader of what comes from now on."""
        reader = ProcessReader()
        self._readers.append(reader)
        return reader

    def leave(self, reader: ProcessReader) -> None:
        """A reader is gone."""
        if reader in self._readers:
            self._readers.remove(reader)

    def begin_slice(self) -> None:
        """The next step begins to follow the process."""
        self._slice = {stream: SliceOutput() for stream in OutputStream}

    def live(self, chunk: OutputChunk) -> None:
        """Takes what a slice printed while it runs."""
        self._pass(chunk.stream, self._slice[chunk.stream].live(chunk))

    def rest(self, result: CommandResult) -> None:
        """Takes what a slice printed."""
        self._pass(OutputStream.STDOUT, self._slice[OutputStream.STDOUT].rest(result.stdout))
        self._pass(OutputStream.STDERR, self._slice[OutputStream.STDERR].rest(result.stderr))

    def tell(self, event: Body) -> None:
        """Takes another event."""
        for reader in self._readers:
            reader.put(event, 0)

    def end(self, error: E2bError | None = None) -> None:
        """Nothing more comes."""
        for reader in self._readers:
            reader.end(error)

    def _pass(self, stream: OutputStream, content: bytes) -> None:
        name: Literal["stdout", "stderr"] = "stdout"
        if stream is OutputStream.STDOUT:
            content = self.pid.strip(content)
            self.stdout_bytes += len(content)
        else:
            name = "stderr"
            self.stderr_bytes += len(content)
        for begin in range(0, len(content), _LONGEST_EVENT):
            part = content[begin : begin + _LONGEST_EVENT]
            event = data_event(name, part)
            for reader in self._readers:
                reader.put(event, len(part))
