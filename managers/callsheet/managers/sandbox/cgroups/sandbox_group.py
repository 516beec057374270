"""The control groups of one sandbox.

In the version 2 tree its first process is in `init`, and each command in a leaf of its own below `commands`: a command
can be killed and its CPU time read without touching what runs in the background, and `commands` is frozen without
freezing the first process, which must notice the end of its manager at any time. In a "cpu" tree of version 1 there are
only commands, for the same reason: a group in the background may wait for long.

`init` and all below `commands` are threaded groups: a new command enters its leaf as a single thread, which is what the
kernel does without waiting. All limits of version 2 are on the group above.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from callsheet.managers.node import MIB
from callsheet.managers.sandbox.cgroups import files
from callsheet.managers.sandbox.cgroups.layout import GroupLayout
from callsheet.managers.sandbox.cgroups.limits import LegacyLimits, LimitEvents, Limits, UnifiedLimits

# What weighs a group against its siblings, with the values of a group that counts and of one in the background: a
# twentieth, so that processes which hold a lock of the kernel, such as that of a page which all read, get on with it.
_WEIGHTS = {"cpu.shares": ("1024", "51"), "cpu.weight": ("100", "5")}
# The agent and, outside its namespace, bwrap itself.
_OWN_PROCESSES = 2
# Each core gathers up to 64 pages of changes before the kernel adds them to what it tells (MEMCG_CHARGE_BATCH).
_UNCOUNTED_BYTES = (os.cpu_count() or 1) * 64 * os.sysconf("SC_PAGESIZE")


class SandboxGroup:
    """The groups of one sandbox.

    What changes a group waits for the kernel's one lock of all groups, milliseconds where others change theirs: call
    those methods in a worker thread. Counters and peaks wait for nothing: read them on the event loop's thread, and
    nowhere else, as their files stay open from one command to the next. Nothing that is unchanged is written.
    """

    def __init__(self, core: Path, trees: Mapping[str, Path], controllers: Collection[str], *, owned: bool) -> None:
        """Use `make` or `adopt`.

        Args:
            core: Its group in the version 2 tree.
            trees: Its groups in controllers' own trees.
            controllers: All that limit it.
            owned: Whether to remove the groups in the end, and not only what was made below them.
        """
        self._core = core
        self._commands = core / "commands"
        self._trees = trees
        self._controllers = controllers
        self._owned = owned
        self._limits: Limits = LegacyLimits(trees) if trees else UnifiedLimits(core, controllers)
        self._leaves = 0
        self._ready: CommandLeaf | None = None
        self._used = files.KeptFile(self._commands / "cpu.stat")
        self._state = files.KeptFile(self._commands / "cgroup.events")
        self._cores: frozenset[int] | None = None
        self._frozen = False
        self._told_cpu_s = 0.0
        self._held: list[Path] = []
        self.weight_file: Path | None = None

    @classmethod
    def make(cls, layout: GroupLayout, name: str, memory_mib: int, max_processes: int) -> SandboxGroup:
        """Makes the groups and sets the limits.

        Raises:
            OSError: A group could not be made; what was made is removed again.
        """
        own_trees = {controller: layout.own_tree(controller) for controller in layout.controllers}
        trees = {controller: path / name for controller, path in own_trees.items() if path is not None}
        group = cls(layout.core / name, trees, layout.controllers.keys(), owned=True)
        try:
            for directory in (group._core, *trees.values()):
                files.make_group(directory)
            for directory in (group._core / "init", group._commands):
                files.make_threaded_group(directory)
            if "memory" in layout.controllers:
                group._limits.limit_memory(memory_mib << 20)
            if "pids" in layout.controllers:
                group._limits.limit_processes(max_processes + _OWN_PROCESSES)
            group.weight_file = layout.weight_file(name)
        except BaseException:
            group.remove()
            raise
        return group

    @classmethod
    def adopt(cls, layout: GroupLayout, memory_mib: int) -> SandboxGroup:
        """Takes groups that somebody else made for a sandbox, with their limits, and makes `commands` below them.

        Args:
            layout: The sandbox's own groups, not those above.
            memory_mib: The memory limit that they have; buffers of sockets get none of the engine.

        Raises:
            OSError: Nothing can be made there.
        """
        own_trees = {controller: layout.own_tree(controller) for controller in layout.controllers}
        trees = {controller: path for controller, path in own_trees.items() if path is not None}
        group = cls(layout.core, trees, layout.controllers.keys(), owned=False)
        files.make_threaded_group(group._commands)
        if "memory" in layout.controllers:
            group._limits.limit_buffers(memory_mib << 20)
        group.weight_file = layout.weight_file("")
        return group

    @property
    def pins_cores(self) -> bool:
        """Returns whether `set_cores` really keeps processes on their cores; otherwise they must be pinned as well."""
        return "cpuset" in self._controllers

    def open_entries(self) -> list[int]:
        """Opens the files into which the first process, one thread, writes "0" to enter; the caller closes them."""
        trees = [directory for controller, directory in self._trees.items() if controller != "cpu"]
        return [*map(files.open_thread_entry, trees), files.open_entry(self._core / "init")]

    @property
    def entries(self) -> list[Path]:
        """Returns the files into which a manager's process writes "0" to run on the sandbox's account."""
        own = self._core / "init" if self._owned else self._core
        return [*(directory / "tasks" for directory in self._trees.values()), own / "cgroup.procs"]

    def set_cores(self, cores: Collection[int]) -> None:
        """Gives everything inside these cores: exactly these, or without a cpuset the time of as many.

        Raises:
            OSError: They are not available here (EINVAL, EACCES).
        """
        if cores == self._cores:
            return
        self._cores = None
        if "cpuset" in self._controllers:
            self._limits.set_cores(cores)
        elif "cpu" in self._controllers:
            self._limits.limit_cpu(len(cores))
        self._cores = frozenset(cores)

    def set_background(self, background: bool) -> None:
        """Lets the commands have little but what other groups leave, or takes that back; needs a `weight_file`."""
        if self.weight_file is not None:
            files.write_setting(self.weight_file, _WEIGHTS[self.weight_file.name][background])

    def cpu_s(self) -> float:
        """CPU seconds of everything but the first process."""
        return self._used.numbers("usage_usec")[0] / 1e6

    def untold_cpu_s(self) -> float:
        """Returns the growth of `cpu_s` since the call before; 0 once the groups are gone."""
        try:
            before, self._told_cpu_s = self._told_cpu_s, self.cpu_s()
        except OSError as error:
            if not files.is_gone(error):
                raise
            return 0.0
        return self._told_cpu_s - before

    def is_empty(self) -> bool:
        """Returns whether nothing is inside but the first process."""
        return not self._state.numbers("populated")[0]

    def is_ready(self, cores: Collection[int] | None) -> bool:
        """Returns whether the next command can begin on these cores, or on any, without a write before it."""
        return self._ready is not None and not self._frozen and cores in (None, self._cores)

    def freeze(self, frozen: bool) -> None:
        """Freezes or thaws all commands and their background processes; returns when all are frozen."""
        if frozen or self._frozen:
            self._frozen = True
            files.write_setting(self._commands / "cgroup.freeze", "1" if frozen else "0")
            self._frozen = frozen
        if frozen:
            files.wait_for_event(self._commands, "frozen 1", files.FREEZE_MILLISECONDS)

    def held_mib(self, *, empty: bool = False) -> int | None:
        """MiB that it has and the kernel cannot take back; None if its memory is not counted, or may grow.

        What waits in the kernel, such as a long write, freezes only when that is over, and takes memory until then.

        Args:
            empty: Nothing is inside; otherwise it must be frozen.
        """
        if "memory" not in self._controllers or not (empty or self._state.numbers("frozen")[0]):
            return None
        return -(-(self._limits.held_bytes() + _UNCOUNTED_BYTES) // MIB)

    def hold(self) -> bool:
        """Freezes what commands left, each in its leaf, until `let_go`; returns whether all are frozen."""
        ready = self._ready.path if self._ready is not None else None
        self._held = [leaf for leaf in self._commands.iterdir() if leaf.is_dir() and leaf != ready]
        for leaf in self._held:
            files.write_setting(leaf / "cgroup.freeze", "1")
        return all(files.wait_for_event(leaf, "frozen 1", files.HOLD_MILLISECONDS) for leaf in self._held)

    def let_go(self) -> None:
        """Thaws it; leaves may be gone since."""
        held, self._held = self._held, []
        for leaf in held:
            try:
                files.write_setting(leaf / "cgroup.freeze", "0")
            except OSError as error:
                if not files.is_gone(error):
                    raise

    def kill(self) -> None:
        """Kills everything inside, frozen or not, and lets it have the CPU time that ending takes.

        Adopted groups may be gone with what was inside.
        """
        try:
            files.write_setting(self._core / "cgroup.kill", "1")
            self.set_background(False)
        except OSError as error:
            if self._owned or not files.is_gone(error):
                raise

    def prepare_leaf(self) -> None:
        """Makes the leaf of the next command, if it is not there yet."""
        if self._ready is None:
            self._ready = self.new_leaf()

    def take_leaf(self) -> CommandLeaf | None:
        """Returns the leaf that was prepared, once; None where there is none. Does not block."""
        leaf, self._ready = self._ready, None
        return leaf

    def give_back(self, leaf: CommandLeaf) -> bool:
        """Keeps the leaf of a command that ended for the next one, if nothing is left inside; returns whether."""
        if self._ready is None and not leaf.killed and self.is_empty():
            self._ready = leaf
        return self._ready is leaf

    def new_leaf(self) -> CommandLeaf:
        """Makes a leaf for a command."""
        self._leaves += 1
        return CommandLeaf(self._commands / str(self._leaves), [self._trees["cpu"]] if "cpu" in self._trees else [])

    def begin_measuring(self) -> LimitEvents:
        """Forgets the peak of memory so far; returns the counters as they are."""
        self._limits.begin_peak()
        return self._limits.events()

    def peak_memory_bytes(self) -> int:
        """Most memory used since `begin_measuring`; 0 if it is not counted."""
        return self._limits.peak_bytes()

    def ran_out_of_memory(self) -> bool:
        """Returns whether any process in it was ever killed for the memory limit; False if the groups are gone."""
        try:
            return self._limits.events().out_of_memory > 0
        except OSError as error:
            if files.is_gone(error):
                return False
            raise

    def limit_events(self) -> LimitEvents:
        """Returns the counters."""
        return self._limits.events()

    def close(self) -> None:
        """Closes what was kept open; call it on the loop's thread before `remove` is called in another."""
        for kept in (self._limits, self._used, self._state, self.take_leaf()):
            if kept is not None:
                kept.close()

    def remove(self) -> None:
        """Kills what is inside and removes the groups, or of adopted ones those below."""
        self.close()
        files.remove_groups([self._core, *self._trees.values()] if self._owned else [self._commands])


class CommandLeaf:
    """The group of one command and what it starts.

    Attributes:
        path: Of the group.
        killed: Nothing more can run in it.
    """

    def __init__(self, path: Path, others: Sequence[Path] = ()) -> None:
        """Makes it. `others` are groups that the command enters as well."""
        self.path = path
        self.killed = False
        self._used = files.KeptFile(path / "cpu.stat")
        files.make_threaded_group(path)
        self.entries = [files.open_thread_entry(directory) for directory in (path, *others)]

    def close(self) -> None:
        """Closes the entries: nothing enters any more."""
        self._used.close()
        while self.entries:
            os.close(self.entries.pop())

    def kill(self) -> None:
        """Kills everything inside."""
        self.killed = True
        files.kill_threads(self.path)

    def cpu_s(self) -> float:
        """CPU seconds of everything that ever ran inside."""
        return self._used.numbers("usage_usec")[0] / 1e6

    def release(self) -> None:
        """Removes it, unless background processes stay; then the end of the sandbox removes it. Safe to call again."""
        self.close()
        try:
            self.path.rmdir()
        except OSError as error:
            if error.errno not in {errno.EBUSY, errno.ENOENT}:
                raise
