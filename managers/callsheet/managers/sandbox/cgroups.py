"""Control groups of sandboxes on a hybrid host: limits in the version 1 trees, freeze and kill in the version 2 tree.

Groups are made below this process's own ones and nothing else is touched. A sandbox has one group in each tree. In the
version 2 tree its first process is in `init`, and each command in a leaf of its own below `commands`: a command can be
killed and its CPU time read without touching what runs in the background, and `commands` is frozen without freezing the
first process, which must notice the end of its manager at any time. In the "cpu" tree there are only commands, for the
same reason: a group that is idle may wait for long.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

_MOUNTS = Path("/proc/self/mountinfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
# What weighs a group against its siblings, the best first, with the values of a group that counts and of an idle one.
_WEIGHTS = {"cpu.idle": ("0", "1"), "cpu.shares": ("1024", "2"), "cpu.weight": ("100", "1")}
_EMPTY_MILLISECONDS = 2000
_FREEZE_MILLISECONDS = 100
# The agent and, outside its namespace, bwrap itself.
_OWN_PROCESSES = 2

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Where this process may make groups.

    Attributes:
        core: Directory in the version 2 tree; freeze and kill work in every group there.
        controllers: Directory in the version 1 tree by controller, for those that are writable.
    """

    core: Path
    controllers: Mapping[str, Path]

    def without(self, controller: str) -> GroupLayout:
        """Returns the layout without the tree of a controller."""
        return GroupLayout(self.core, {name: path for name, path in self.controllers.items() if name != controller})

    def weight_file(self, name: str) -> Path | None:
        """Returns the file that weighs the group of this name against its siblings, once the group is made."""
        directories = [path / name for path in (self.controllers.get("cpu"), self.core) if path is not None]
        files = (directory / file for directory in directories for file in _WEIGHTS)
        return next((file for file in files if file.exists()), None)

    def directories(self) -> list[Path]:
        """All of them."""
        return [self.core, *self.controllers.values()]


@dataclass(frozen=True, slots=True)
class LimitEvents:
    """How often a sandbox met its limits so far."""

    out_of_memory: int
    process_limit: int


def find_layout(mounts: str, own_groups: str) -> GroupLayout | None:
    """Returns the places of this process's own groups; None without a version 2 tree or without kill in it.

    Args:
        mounts: Text of /proc/self/mountinfo.
        own_groups: Text of /proc/self/cgroup.
    """
    own: dict[str, str] = {}
    for line in own_groups.splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    core: Path | None = None
    controllers: dict[str, Path] = {}
    for line in mounts.splitlines():
        fields, _, kind = line.partition(" - ")
        root, mount_point = fields.split()[3:5]
        if kind.startswith("cgroup2 ") and "" in own:
            core = _below(mount_point, root, own[""])
        elif kind.startswith("cgroup "):
            options = kind.split()[-1].split(",")
            for name in _CONTROLLERS:
                if name in options and name in own:
                    controllers[name] = _below(mount_point, root, own[name])
    return GroupLayout(core, controllers) if core is not None else None


def probe_layout() -> GroupLayout | None:
    """Returns the part of the layout in which groups can really be made; None without the version 2 tree."""
    try:
        layout = find_layout(_MOUNTS.read_text(), _OWN_GROUPS.read_text())
    except (OSError, ValueError):
        return None
    if layout is None or not _can_make_groups(layout.core, "cgroup.kill"):
        return None
    writable = {name: path for name, path in layout.controllers.items() if _can_make_groups(path, "cgroup.procs")}
    return GroupLayout(layout.core, writable)


class SandboxGroup:
    """The groups of one sandbox. All methods block for microseconds to milliseconds: call them in a worker thread."""

    def __init__(self, layout: GroupLayout, name: str, memory_mib: int, max_processes: int) -> None:
        """Makes the groups and sets the limits.

        Raises:
            OSError: A group could not be made; what was made is removed again.
        """
        self._core = layout.core / name
        self._commands = self._core / "commands"
        self._limits = {controller: path / name for controller, path in layout.controllers.items()}
        self._leaves = 0
        self.weight_file: Path | None = None
        try:
            for directory in (self._core, self._core / "init", self._commands, *self._limits.values()):
                directory.mkdir()
            if "cpuset" in self._limits:
                for file in ("cpuset.mems", "cpuset.cpus"):
                    value = (layout.controllers["cpuset"] / file).read_text().strip()
                    _write(self._limits["cpuset"] / file, value)
            if "memory" in self._limits:
                _write(self._limits["memory"] / "memory.limit_in_bytes", str(memory_mib << 20))
            if "pids" in self._limits:
                _write(self._limits["pids"] / "pids.max", str(max_processes + _OWN_PROCESSES))
            self.weight_file = layout.weight_file(name)
        except BaseException:
            self.remove()
            raise

    @property
    def pins_cores(self) -> bool:
        """Whether `set_cores` works."""
        return "cpuset" in self._limits

    def open_entries(self) -> list[int]:
        """Opens what the first process writes "0" into to enter; the caller closes them."""
        limits = [directory for controller, directory in self._limits.items() if controller != "cpu"]
        directories = [*limits, self._core / "init"]
        return [os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for directory in directories]

    def set_cores(self, cores: Iterable[int]) -> None:
        """Puts everything inside on these cores; OSError (EINVAL, EACCES) if they are not available here."""
        _write(self._limits["cpuset"] / "cpuset.cpus", ",".join(map(str, sorted(cores))))

    def set_idle(self, idle: bool) -> None:
        """Lets the commands have only what other groups leave, or takes that back; needs a `weight_file`."""
        if self.weight_file is not None:
            _write(self.weight_file, _WEIGHTS[self.weight_file.name][idle])

    def cpu_s(self) -> float:
        """CPU seconds of everything but the first process."""
        return _counter(self._commands / "cpu.stat", "usage_usec") / 1e6

    def freeze(self, frozen: bool) -> None:
        """Freezes or thaws all commands and what they left in the background; returns when all are frozen."""
        _write(self._commands / "cgroup.freeze", "1" if frozen else "0")
        if frozen:
            _wait_for_event(self._commands, "frozen 1", _FREEZE_MILLISECONDS)

    def kill(self) -> None:
        """Kills everything inside, frozen or not."""
        _write(self._core / "cgroup.kill", "1")

    def new_leaf(self) -> CommandLeaf:
        """Makes a leaf for a command."""
        self._leaves += 1
        return CommandLeaf(self._commands / str(self._leaves), [self._limits["cpu"]] if "cpu" in self._limits else [])

    def kill_commands(self) -> None:
        """Kills all commands and what they left in the background; the first process stays."""
        _write(self._commands / "cgroup.kill", "1")

    def begin_measuring(self) -> LimitEvents:
        """Forgets the peak of memory so far; returns the counters as they are."""
        if "memory" in self._limits:
            _write(self._limits["memory"] / "memory.max_usage_in_bytes", "0")
        return self.limit_events()

    def peak_memory_bytes(self) -> int:
        """Most memory used since `begin_measuring`; 0 if it is not counted."""
        if "memory" not in self._limits:
            return 0
        return int((self._limits["memory"] / "memory.max_usage_in_bytes").read_text())

    def limit_events(self) -> LimitEvents:
        """Returns the counters."""
        memory, processes = self._limits.get("memory"), self._limits.get("pids")
        return LimitEvents(
            _counter(memory / "memory.oom_control", "oom_kill") if memory else 0,
            _counter(processes / "pids.events", "max") if processes else 0,
        )

    def remove(self) -> None:
        """Kills what is inside and removes the groups."""
        remove_groups([self._core, *self._limits.values()])


class CommandLeaf:
    """The group of one command and what it starts."""

    def __init__(self, path: Path, others: Sequence[Path] = ()) -> None:
        """Makes it. `others` are groups that the command enters as well."""
        self._path = path
        path.mkdir()
        self.entries: list[int] = []
        for directory in (path, *others):
            self.entries.append(os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))

    def kill(self) -> None:
        """Kills everything inside."""
        _write(self._path / "cgroup.kill", "1")

    def cpu_s(self) -> float:
        """CPU seconds of everything that ever ran inside."""
        return _counter(self._path / "cpu.stat", "usage_usec") / 1e6

    def release(self) -> None:
        """Removes it, unless background processes stay; then the end of the sandbox removes it."""
        while self.entries:
            os.close(self.entries.pop())
        try:
            self._path.rmdir()
        except OSError as error:
            if error.errno not in {errno.EBUSY, errno.ENOENT}:
                raise


def remove_groups(directories: Iterable[Path]) -> None:
    """Kills what is inside the groups and removes them; one that cannot be removed is logged and left."""
    for directory in directories:
        if not directory.exists():
            continue
        if (directory / "cgroup.kill").exists():
            _write(directory / "cgroup.kill", "1")
            _wait_for_event(directory, "populated 0", _EMPTY_MILLISECONDS)
        else:
            _kill_members(directory)
        try:
            for path, _, _ in os.walk(directory, topdown=False):
                os.rmdir(path)
        except OSError as error:
            _log.warning("group_not_removed", group=str(directory), error=str(error))


def _below(mount_point: str, root: str, own: str) -> Path:
    """The group's directory; `root` is the part of the hierarchy that the mount shows."""
    relative = own[len(root) :] if root != "/" and own.startswith(root) else own
    return Path(mount_point) / relative.lstrip("/")


def _can_make_groups(parent: Path, needed: str) -> bool:
    trial = parent / f"callsheet-probe-{os.getpid()}"
    try:
        trial.mkdir()
    except OSError:
        return False
    try:
        return (trial / needed).exists()
    finally:
        trial.rmdir()


def _write(path: Path, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _counter(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _kill_members(directory: Path) -> None:
    for pid in (directory / "cgroup.procs").read_text().split():
        try:
            os.kill(int(pid), 9)
        except ProcessLookupError:
            continue


def _wait_for_event(directory: Path, state: str, milliseconds: int) -> None:
    """Waits for a state of a group; the kernel announces changes on cgroup.events. Gives up after a silence."""
    with open(directory / "cgroup.events", encoding="ascii") as events:
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        while state not in events.read():
            if not poll.poll(milliseconds):
                return
            events.seek(0)
