"""A tree of files that follows the kernel's rules of control groups of version 2: the machine may have none."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from callsheet.managers.sandbox.cgroups import files

CORE_FILES = {
    "cgroup.type": "domain\n",
    "cgroup.procs": "",
    "cgroup.threads": "",
    "cgroup.subtree_control": "",
    "cgroup.events": "populated 0\nfrozen 0\n",
    "cgroup.freeze": "0\n",
    "cgroup.kill": "",
    "cpu.stat": "usage_usec 0\nuser_usec 0\n",
    "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
}
CONTROLLER_FILES = {
    "cpu": {"cpu.max": "max 100000\n", "cpu.weight": "100\n", "cpu.idle": "0\n"},
    "cpuset": {"cpuset.cpus": "\n", "cpuset.mems": "\n", "cpuset.mems.effective": "0-1\n"},
    "memory": {
        "memory.max": "max\n",
        "memory.swap.max": "max\n",
        "memory.peak": "0\n",
        "memory.events": "low 0\noom 0\noom_kill 0\n",
    },
    "pids": {"pids.max": "max\n", "pids.events": "max 0\n"},
}


class FakeCgroups:
    """One such tree.

    A new group has the core's files and those of the controllers that the group above hands down. Writing an id into
    cgroup.procs moves a process; controllers cannot be handed down while processes are directly inside a group that is
    not the machine's root. Killing is refused in threaded groups.
    """

    def __init__(self, root: Path, *controllers: str) -> None:
        """Args: root: Becomes a group that has `controllers`."""
        self.root = root
        self._make_files(root, controllers)

    def make_group(self, directory: Path) -> None:
        """Stands in for `files.make_group`."""
        directory.mkdir()
        self._make_files(directory, self.read(directory.parent, "cgroup.subtree_control").split())

    def write_setting(self, path: Path, value: str) -> None:
        """Stands in for `files.write_setting`."""
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if path.name == "cgroup.procs":
            self._move(value, path)
        elif path.name == "cgroup.subtree_control":
            self._hand_down(path, value.removeprefix("+"))
        elif path.name == "cgroup.kill" and self.read(path.parent, "cgroup.type") == "threaded":
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(path))
        else:
            path.write_text(f"{value}\n")

    def read(self, group: Path, file: str) -> str:
        """Returns a file's text."""
        return (group / file).read_text().strip()

    def open_files(self) -> list[str]:
        """Returns the files of the tree that this process holds open; other threads may open what they like."""
        opened = []
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # such as that of this look
                opened.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return [name for name in opened if name.startswith(f"{self.root}/")]

    def _make_files(self, group: Path, controllers: Sequence[str]) -> None:
        contents = {**CORE_FILES, "cgroup.controllers": " ".join(controllers) + "\n"}
        for controller in controllers:
            contents.update(CONTROLLER_FILES.get(controller, {}))
        for name, text in contents.items():
            (group / name).write_text(text)

    def _move(self, process: str, target: Path) -> None:
        for members in self.root.rglob("cgroup.procs"):
            left = [line for line in members.read_text().split() if line != process]
            members.write_text("".join(f"{line}\n" for line in left))
        target.write_text(f"{target.read_text()}{process}\n")

    def _hand_down(self, path: Path, controller: str) -> None:
        group = path.parent
        if self.read(group, "cgroup.procs") and (group / "cgroup.type").exists():
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        if controller not in self.read(group, "cgroup.controllers").split():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        path.write_text(f"{path.read_text().strip()} {controller}".strip() + "\n")


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeCgroups) -> None:
    """Lets the real code work on the fake tree."""
    monkeypatch.setattr(files, "make_group", fake.make_group)
    monkeypatch.setattr(files, "write_setting", fake.write_setting)
    monkeypatch.setattr(files, "can_make_groups", lambda parent, needed: (parent / needed).exists())
