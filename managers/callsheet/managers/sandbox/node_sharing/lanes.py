"""Carries the lanes of node sharing out: in a group where one is writable, else on every process of a sandbox."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from callsheet.managers.sandbox.cgroups import GroupLayout, SandboxGroup
from callsheet.managers.sandbox.node_sharing import Lane
from callsheet.managers.sandbox.process_tree import cpu_seconds_below, for_every_thread, processes_below

_AUTOGROUP_SETTING = Path("/proc/sys/kernel/sched_autogroup_enabled")
# What is waited for below cannot be waited for otherwise: the kernel tells an unprivileged user neither that a session
# was opened (its connector takes CAP_NET_ADMIN) nor when a weight may be changed again, ten times a second.
# A word of the agent would come from a process that the sandbox's own can stop.
_AUTOGROUP_PAUSE_S = 0.11
_AUTOGROUP_TRIES = 5
# 0.1 s for a command that was just forked; what comes later is found when lanes are carried out again.
_SESSION_TRIES = 50
_SESSION_PAUSE_S = 0.002
# In the background about a twentieth of the weight, as groups have. Whoever holds a lock of the kernel must get on with
# it, and would not if it had idle cores alone.
_NICE = {Lane.FOREGROUND: 0, Lane.BACKGROUND: 13}


class LaneMethod(Enum):
    """Property that separates the lanes for the kernel's scheduler; the values are for people."""

    WEIGHT_GROUP = "weight of the sandbox's group"
    NICE_PROCESSES = "niceness of every process"
    SESSION_WEIGHT = "weight of every session"
    NONE = "not told apart: all commands share the cores alike"


class SandboxLanes:
    """The lane of one sandbox's commands, and the CPU time they have had. All methods block for up to milliseconds."""

    def __init__(self, group: SandboxGroup | None, first_process: Callable[[], int], *, by_process: bool) -> None:
        """Args:
        group: Of the sandbox, if there are groups.
        first_process: Returns the id of its agent, which itself is in no lane.
        by_process: Whether processes may be changed where no group does.
        """
        self._group = group
        self._by_process = by_process
        self._first_process = first_process
        self.lane = Lane.FOREGROUND

    @property
    def method(self) -> LaneMethod:
        """How lanes are told apart."""
        return lane_method(self._group.weight_file if self._group is not None else None, by_process=self._by_process)

    @property
    def by_process(self) -> bool:
        """Returns whether its processes or sessions are changed one by one."""
        return self.method in {LaneMethod.NICE_PROCESSES, LaneMethod.SESSION_WEIGHT}

    @property
    def must_follow(self) -> bool:
        """Returns whether a command or session that begins now must be put into its lane afterwards."""
        return self.lane is Lane.BACKGROUND and self.by_process

    def put(self, lane: Lane) -> None:
        """Puts everything but the first process into a lane; OSError if the kernel refuses."""
        if self._group is not None and self._group.weight_file is not None:
            self._group.set_background(lane is Lane.BACKGROUND)
        elif self.method is not LaneMethod.NONE:
            put_tree(self._first_process(), lane, self.method)
        self.lane = lane

    def attained_s(self) -> float:
        """Returns the CPU seconds of all commands so far, and of what they left in the background."""
        if self._group is not None:
            return self._group.cpu_s()
        return cpu_seconds_below(self._first_process())


def lane_method(weight_file: Path | None, *, by_process: bool) -> LaneMethod:
    """Returns how lanes are told apart.

    Args:
        weight_file: Weighs a sandbox's group, if there is one.
        by_process: Whether processes may be changed where there is none. In the groups of an engine that is no use:
            they weigh alike whatever is in them.
    """
    if weight_file is None:
        return process_lane_method() if by_process else LaneMethod.NONE
    return LaneMethod.WEIGHT_GROUP


def describe_lanes(layout: GroupLayout | None, *, ranked: bool, by_process: bool) -> str:
    """Returns what a registration says of lanes.

    Args:
        layout: Where groups of sandboxes are made, if they are.
        ranked: Whether commands are ranked at all.
        by_process: See `lane_method`.
    """
    if not ranked:
        return "none: commands are not ranked"
    return lane_method(layout.weight_file("") if layout is not None else None, by_process=by_process).value


def put_tree(root: int, lane: Lane, method: LaneMethod) -> None:
    """Puts every process below one into a lane.

    Where the kernel groups by session, a session weighs alike whatever is in it, so its weight is changed as well. A
    command that was just forked is in the session of its agent, whose weight stays as it is, until it opens its own. It
    is closed to other processes of its user, as its agent is, until it has become its program.

    Raises:
        PermissionError: The kernel does not let this user take it back, see `process_lane_method`.
    """
    if method is LaneMethod.NICE_PROCESSES:
        for_every_thread(root, lambda thread: os.setpriority(os.PRIO_PROCESS, thread, _NICE[lane]), include_root=False)
    if _groups_by_session():
        for _ in range(_SESSION_TRIES):
            if _weigh_sessions(root, _NICE[lane]):
                return
            time.sleep(_SESSION_PAUSE_S)


def _weigh_sessions(root: int, nice: int) -> bool:
    """Changes the weight of all sessions below a process but its own.

    Returns:
        Whether nobody else was in its own, and no session was closed to this process.
    """
    own, all_left = os.getsid(root), True
    weighed, closed = set[int](), set[int]()
    for process in processes_below(root):
        try:
            session = os.getsid(process)
        except ProcessLookupError:
            continue
        if session == own:
            all_left = all_left and process == root
        elif session not in weighed:
            (weighed if _set_session_weight(process, nice) else closed).add(session)
    return all_left and closed <= weighed


@functools.cache
def process_lane_method() -> LaneMethod:
    """Returns what this user may change, and change back, of other processes; found out on a thread of this one."""
    if _can_be_nice_no_more():
        return LaneMethod.NICE_PROCESSES
    return LaneMethod.SESSION_WEIGHT if _groups_by_session() else LaneMethod.NONE


def _can_be_nice_no_more() -> bool:
    """Returns whether a thread that was made nice can be made normal again: needs privilege, or RLIMIT_NICE."""
    answers: list[bool] = []

    def try_it() -> None:
        try:
            for lane in (Lane.BACKGROUND, Lane.FOREGROUND):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE[lane])
        except PermissionError:
            answers.append(False)
        else:
            answers.append(True)

    thread = threading.Thread(target=try_it, name="callsheet-nice-probe")
    thread.start()
    thread.join()
    return answers == [True]


def _groups_by_session() -> bool:
    with contextlib.suppress(OSError):
        return _AUTOGROUP_SETTING.read_text().strip() == "1"
    return False


def _set_session_weight(process: int, nice: int) -> bool:
    """Returns whether the process was open to this one, or has ended."""
    for _ in range(_AUTOGROUP_TRIES):
        try:
            with open(f"/proc/{process}/autogroup", "r+b", buffering=0) as file:
                # A write that the kernel puts off (EAGAIN) returns None.
                if file.read().split()[-1:] == [b"%d" % nice] or file.write(b"%d" % nice) is not None:
                    break
        except (FileNotFoundError, ProcessLookupError):
            break
        except PermissionError:
            return False
        time.sleep(_AUTOGROUP_PAUSE_S)
    return True
