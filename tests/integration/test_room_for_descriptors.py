"""A send for which the kernel has no room is no lost stream, whoever holds the descriptors that are on their way."""

from __future__ import annotations

import os
import resource
import socket
import traceback
from collections.abc import Callable, Coroutine

import anyio
import pytest
from callsheet.managers.sandbox.agent_client import packets
from callsheet.managers.sandbox.agent_client.client import AgentConnection
from callsheet.managers.sandbox.agent_client.packets import NoRoomError, PacketSocket, socket_pair
from callsheet.managers.sandbox.errors import NoRoomInKernelError

from tests.support.other_user import OTHER_UID

_MOST = 64
# A user of its own, as the kernel counts for each: nobody else's descriptors disturb, or are disturbed.
_UID = OTHER_UID + 1


def run_unprivileged(main: Callable[[], Coroutine[object, object, None]]) -> None:
    """Runs it in a process of an unprivileged user that may have few descriptors on their way."""
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST, _MOST))
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(_UID, _UID, _UID)
                os.setresuid(_UID, _UID, _UID)
            anyio.run(main)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


class Holder:
    """Descriptors on their way, more than this process may have there."""

    def __init__(self) -> None:
        self.sender, self.receiver = socket.socketpair()
        self.sender.setblocking(False)
        with pytest.raises(OSError, match="Too many references"):
            self._fill()

    def _fill(self) -> None:
        while True:
            socket.send_fds(self.sender, [b"x"], [0] * _MOST)

    async def release(self) -> None:
        self.receiver.close()


def ignore(*_: object) -> None:
    """Nothing is told."""


def test_a_send_waits_for_room_and_asks_for_it() -> None:
    async def main() -> None:
        own, other = socket_pair()
        stream = PacketSocket(own, ignore, ignore, Holder().release)
        with anyio.fail_after(30):
            await stream.send({"op": "run"}, [0])
        assert socket.recv_fds(other, 100, 1)[0] == b'{"op": "run"}'
        stream.close()

    run_unprivileged(main)


def test_a_send_in_vain_leaves_the_stream_and_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "_ROOM_SECONDS", 0.1)

    async def main() -> None:
        own, other = socket_pair()
        holder = Holder()
        stream = PacketSocket(own, ignore, ignore)
        with pytest.raises(NoRoomError):
            await stream.send({}, [0])
        await stream.send({"op": "signal"})
        assert other.recv(100) == b'{"op": "signal"}'
        stream.close()
        own, other = socket_pair()
        connection = AgentConnection(own, ignore)
        with pytest.raises(NoRoomInKernelError):
            await connection.start("run", {}, [0])
        assert connection.loss is None
        await holder.release()
        assert not (await connection.start("run", {}, [])).finished.is_set()
        connection.close("the end")
        other.close()

    run_unprivileged(main)
