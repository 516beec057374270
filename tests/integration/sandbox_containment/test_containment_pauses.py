"""What tries to go on while its sandbox is paused."""

from __future__ import annotations

import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.process_tree import cpu_seconds_below

from tests.support.sandboxes import running_commands, shell, until_file, until_still

pytestmark = [pytest.mark.anyio, pytest.mark.alone]

_WAKING = """
import ctypes, fcntl, os, signal, sys
library = ctypes.CDLL(None)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_long), ("number", ctypes.c_int), ("how", ctypes.c_int), ("rest", ctypes.c_long * 6)]
timer = ctypes.c_void_p()
if library.syscall(222, 0, ctypes.byref(Event(0, signal.SIGCONT, 0)), ctypes.byref(timer)) == 0:
    library.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 1000000, 0, 1000000), None)
fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
fcntl.fcntl(1, fcntl.F_SETOWN, os.getpid())
signal.signal(signal.SIGIO, signal.SIG_IGN)
try:
    fcntl.fcntl(1, 10, signal.SIGCONT)
except OSError:
    pass
open("begun", "x").close()
while True:
    try:
        os.write(1, bytes(4096))
    except OSError:
        pass
"""


async def test_nothing_inside_undoes_a_pause(sandbox: AgentSandbox) -> None:
    await shell(sandbox, f"python3 -c '{_WAKING}' & while [ ! -e begun ]; do sleep 0.01; done")
    await sandbox.pause()
    await until_still(lambda: cpu_seconds_below(sandbox.agent_pid))


async def test_what_goes_on_in_a_pause_is_stopped_again(sandbox: AgentSandbox) -> None:
    await shell(sandbox, "sh -c 'echo > begun; while :; do :; done' >/dev/null 2>&1 &")
    await until_file(sandbox, "begun")
    await sandbox.pause()
    for process, line in running_commands():
        if line[0] == "sh":
            process.resume()
    await until_still(lambda: cpu_seconds_below(sandbox.agent_pid))
