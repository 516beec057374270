"""JSON packets with file descriptors over a SOCK_SEQPACKET pair, on the event loop."""

from __future__ import annotations

import array
import asyncio
import errno
import fcntl
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

_LARGEST_PACKET = 1 << 16
_MOST_BRACKETS = 100
_CREDENTIALS = struct.Struct("3i")

# What a send fails with where the kernel has no room now: nothing was sent, and the stream is whole.
_NO_ROOM = frozenset({errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})
_ROOM_SECONDS = 10.0
_PATIENCE_SECONDS = 0.3
_LOOK_SECONDS = 0.05

RoomMaker = Callable[[], Awaitable[None]]
PacketHandler = Callable[[Mapping[str, object], int], None]


class NoRoomError(OSError):
    """The kernel had no room for a packet, or for one more descriptor on its way, for seconds. The stream is whole."""


class ProtocolError(Exception):
    """The other side broke the protocol; nothing it says can be relied on any more."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Returns this process's end, non-blocking and told each packet's sender by the kernel, and the other end."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    own.setblocking(False)
    return own, other


def memory_file(name: str, content: bytes) -> int:
    """Returns a descriptor of a sealed memory file: whoever gets it can read it and never change it."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class PacketSocket:
    """One end of a pair. Packets go to a handler on the event loop; a broken or ended stream is told once."""

    def __init__(
        self,
        own: socket.socket,
        on_packet: PacketHandler,
        on_closed: Callable[[str], None],
        make_room: RoomMaker | None = None,
    ) -> None:
        """Args:
        own: From `socket_pair`; this object owns it now.
        on_packet: Gets each packet and its sender's process id. What it raises as ProtocolError ends the stream.
        on_closed: Gets a reason when the stream ends by anything but `close`.
        make_room: Called when the kernel has had no room for a while, to see to it that it has.
        """
        self._make_room = make_room
        self._socket = own
        self._on_packet = on_packet
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._writable = anyio.Event()
        self._writable.set()
        self._loop.add_reader(own, self._read)

    async def send(self, packet: Mapping[str, object] | bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends one packet, or its text; the descriptors stay the caller's.

        Raises:
            NoRoomError: The kernel had no room for it, for too long.
            OSError: The stream has ended.
        """
        began = self._loop.time()
        content = packet if isinstance(packet, bytes) else json.dumps(packet).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        while self._open:
            try:
                self._socket.sendmsg([content], rights)
            except BlockingIOError:
                await self._until_writable()
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                await self._until_room(error, self._loop.time() - began)
            else:
                return
        raise BrokenPipeError("the packet socket is closed")

    def close(self) -> None:
        """Ends the stream; `on_closed` is not called."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._writable.set()

    async def _until_room(self, error: OSError, waited_s: float) -> None:
        """Returns when it is worth trying again; raises NoRoomError after too long."""
        if waited_s > _ROOM_SECONDS:
            raise NoRoomError(error.errno, f"the kernel has no room: {error.strerror}") from error
        if self._make_room is not None and waited_s > _PATIENCE_SECONDS:
            await self._make_room()
        # Nothing tells when there is some again.
        await anyio.sleep(_LOOK_SECONDS)

    async def _until_writable(self) -> None:
        """Returns when it is worth trying again, or the stream was closed."""
        if self._writable.is_set():
            self._writable = anyio.Event()
            self._loop.add_writer(self._socket, self._on_writable)
        await self._writable.wait()

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._socket)
        self._writable.set()

    def _fail(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_closed(reason)

    def _read(self) -> None:
        """Takes one packet; the loop calls again while there are more."""
        try:
            content, control, flags, _ = self._socket.recvmsg(_LARGEST_PACKET, socket.CMSG_SPACE(_CREDENTIALS.size))
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"reading failed: {error}")
            return
        if not content:
            self._fail("the process is gone")
            return
        try:
            if flags & socket.MSG_TRUNC:
                raise ProtocolError(f"a packet of more than {_LARGEST_PACKET} bytes")
            self._on_packet(_parse(content), _sender(control))
        except ProtocolError as error:
            self._fail(f"broken protocol: {error}")


def integer(packet: Mapping[str, object], name: str, lowest: int, highest: int) -> int:
    """Returns an integer field of an untrusted packet.

    Raises:
        ProtocolError: It is missing, no integer or out of range.
    """
    value = packet.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ProtocolError(f"{name}: must be an integer from {lowest} to {highest}")
    return value


def _parse(content: bytes) -> Mapping[str, object]:
    # Counted before parsing: deep nesting would exhaust the parser's recursion.
    if content.count(b"[") + content.count(b"{") > _MOST_BRACKETS:
        raise ProtocolError("a packet of too many parts")
    try:
        packet = json.loads(content)
    except ValueError as error:
        raise ProtocolError("a packet that is no JSON") from error
    if not isinstance(packet, dict):
        raise ProtocolError("a packet that is no JSON object")
    return packet


def _sender(control: Sequence[tuple[int, int, bytes]]) -> int:
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack_from(data)[0])
    raise ProtocolError("a packet without credentials")
