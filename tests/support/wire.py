"""The wire between hosts of `hosts`: a process that passes frames on, and holds back or drops those that it is told.

`python -m tests.support.wire INTERFACE...` in the network namespace that has one interface to each host. A line of
standard input changes a host: its place, seconds by which its frames are late, whether others hear it, whether it hears
others. A line of standard output says that this holds. The end of the input ends it.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import socket
import sys
from dataclasses import dataclass
from time import monotonic

_ALL_PROTOCOLS, _SOL_PACKET, _PACKET_VNET_HDR = 3, 263, 15
_VNET_HEADER = 10
_LONGEST = 1 << 17


@dataclass(slots=True)
class _Port:
    """A host's end."""

    socket: socket.socket
    late_s: float = 0.0
    heard: bool = True
    hears: bool = True


def _open(interface: str) -> _Port:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    # Frames of veth devices come unsegmented and without checksums; this header says what is still to be done.
    raw.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    raw.bind((interface, _ALL_PROTOCOLS))
    raw.setblocking(False)
    return _Port(raw)


class Wire:
    """All ports. A host's hardware address ends with its place, counted from 1."""

    def __init__(self, interfaces: list[str]) -> None:
        self.ports = [_open(interface) for interface in interfaces]
        self._late: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def take(self, place: int) -> None:
        """Passes on what a host has sent, or keeps it for a while."""
        port = self.ports[place]
        while True:
            try:
                frame, address = port.socket.recvfrom(_LONGEST)
            except BlockingIOError:
                return
            if address[2] == socket.PACKET_OUTGOING or not port.heard:
                continue
            if port.late_s:
                self._count += 1
                heapq.heappush(self._late, (monotonic() + port.late_s, self._count, place, frame))
            else:
                self._send(place, frame)

    def send_due(self) -> float | None:
        """Passes on what was kept for long enough; returns the seconds until more is due."""
        while self._late:
            wait_s = self._late[0][0] - monotonic()
            if wait_s > 0:
                return wait_s
            _, _, place, frame = heapq.heappop(self._late)
            self._send(place, frame)
        return None

    def _send(self, place: int, frame: bytes) -> None:
        destination = frame[_VNET_HEADER : _VNET_HEADER + 6]
        one = destination[5] - 1 if destination[0] == 2 else None
        for other in range(len(self.ports)) if one is None else (one,):
            port = self.ports[other]
            if other != place and port.hears:
                try:
                    port.socket.send(frame)
                except OSError as error:
                    # A full queue loses frames, as on any wire.
                    sys.stderr.write(f"lost a frame: {error}\n")


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    """Runs it until its input ends."""
    wire = Wire(sys.argv[1:])
    poll = select.poll()
    by_descriptor = {port.socket.fileno(): place for place, port in enumerate(wire.ports)}
    for descriptor in (0, *by_descriptor):
        poll.register(descriptor, select.POLLIN)
    _say("ready")
    orders = b""
    while True:
        wait_s = wire.send_due()
        for descriptor, _ in poll.poll(None if wait_s is None else wait_s * 1000):
            if descriptor in by_descriptor:
                wire.take(by_descriptor[descriptor])
                continue
            came = os.read(0, 4096)
            if not came:
                return
            *lines, orders = (orders + came).split(b"\n")
            for line in lines:
                place, port_late_s, heard, hears = json.loads(line)
                port = wire.ports[place]
                port.late_s, port.heard, port.hears = port_late_s, heard, hears
                _say("done")


if __name__ == "__main__":
    main()
