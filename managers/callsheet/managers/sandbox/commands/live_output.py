"""The output of a command on its way out while the command runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from callsheet.managers.sandbox.backend import OutputName
from callsheet.v1 import common_pb2

LONGEST_CHUNK = 65_536
"""The most bytes of one output that are sent at a time; what comes beyond them meanwhile is dropped."""

_PAUSE_S = 0.1
_STREAMS = {
    OutputName.STDOUT: common_pb2.OUTPUT_STREAM_STDOUT,
    OutputName.STDERR: common_pb2.OUTPUT_STREAM_STDERR,
}


class LiveOutput:
    """The output of one attempt on its way out. At most `LONGEST_CHUNK` bytes of each output go in a tenth of a second.

    A command that floods its output costs the scheduler no more than that, and one that prints line by line no more
    messages than that.
    """

    def __init__(self, report: Callable[[common_pb2.OutputChunk], None]) -> None:
        """Must be made and used on the event loop's thread.

        Args:
            report: Sends a part.
        """
        self._report = report
        self._waiting = {stream: bytearray() for stream in OutputName}
        self._begins = dict.fromkeys(OutputName, 0)
        self._totals = dict.fromkeys(OutputName, 0)
        self._timer: asyncio.TimerHandle | None = None

    def take(self, stream: OutputName, content: bytes) -> None:
        """Takes what was printed; an `OutputListener`."""
        waiting = self._waiting[stream]
        if not waiting:
            self._begins[stream] = self._totals[stream]
        waiting += content[: LONGEST_CHUNK - len(waiting)]
        self._totals[stream] += len(content)
        if self._timer is None:
            self._send_and_wait()

    def close(self) -> None:
        """Sends the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send()

    def _send_and_wait(self) -> None:
        self._timer = None
        if self._send():
            self._timer = asyncio.get_running_loop().call_later(_PAUSE_S, self._send_and_wait)

    def _send(self) -> bool:
        """Sends what waits; returns whether there was anything."""
        sent = False
        for stream, waiting in self._waiting.items():
            if waiting:
                offset, content = self._begins[stream], bytes(waiting)
                waiting.clear()
                self._report(common_pb2.OutputChunk(stream=_STREAMS[stream], offset=offset, content=content))
                sent = True
        return sent
