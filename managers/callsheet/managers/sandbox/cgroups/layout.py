"""Finds the groups in which this process may make control groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from callsheet.managers.sandbox.cgroups import files
from callsheet.managers.sandbox.cgroups.delegation import MANAGERS_GROUP, enable_controllers

CONTROLLERS = ("cpu", "cpuset", "memory", "pids")

_MOUNTS = Path("/proc/self/mountinfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_WEIGHT_FILES = ("cpu.shares", "cpu.weight")


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Directories in which this process may make groups.

    Attributes:
        core: Directory in the version 2 tree; freeze and kill work in every group there.
        controllers: Directory by controller, for those that are writable: `core` for controllers of version 2, else
            the directory in the controller's own tree.
    """

    core: Path
    controllers: Mapping[str, Path]

    def without(self, controller: str) -> GroupLayout:
        """Returns the layout without the tree of a controller."""
        return GroupLayout(self.core, {name: path for name, path in self.controllers.items() if name != controller})

    def weight_file(self, name: str) -> Path | None:
        """Returns the file that weighs the group of this name against its siblings, once the group is made."""
        directories = [path / name for path in (self.controllers.get("cpu"), self.core) if path is not None]
        files = (directory / file for directory in directories for file in _WEIGHT_FILES)
        return next((file for file in files if file.exists()), None)

    def own_tree(self, controller: str) -> Path | None:
        """Returns the directory in a controller's own tree; None if it has none or lies in the version 2 tree."""
        path = self.controllers.get(controller)
        return path if path != self.core else None

    def directories(self) -> list[Path]:
        """All of them, each once."""
        return list(dict.fromkeys([self.core, *self.controllers.values()]))


def find_layout(mounts: str, groups: str) -> GroupLayout | None:
    """Returns the places of a process's groups; None without a version 2 tree.

    Args:
        mounts: Text of /proc/self/mountinfo.
        groups: Text of /proc/PID/cgroup. A process that was moved into `delegation.MANAGERS_GROUP` counts as one of
            the group above.
    """
    own: dict[str, str] = {}
    for line in groups.splitlines():
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
            for name in CONTROLLERS:
                if name in options and name in own:
                    controllers[name] = _below(mount_point, root, own[name])
    if core is None:
        return None
    return GroupLayout(core.parent if core.name == MANAGERS_GROUP else core, controllers)


def probe_layout(delegated: Path | None = None) -> GroupLayout | None:
    """Returns the part of the layout in which groups can really be made; None without a version 2 tree.

    Where the version 2 group of this process was delegated, its controllers are enabled for groups below it, for which
    processes directly inside it are moved down, see `delegation.enable_controllers`.

    Args:
        delegated: A version 2 group that was made for this manager; by default the one it is in.
    """
    layout = GroupLayout(delegated, {}) if delegated is not None else own_layout()
    if layout is None or not files.can_make_groups(layout.core, "cgroup.kill"):
        return None
    writable = {name: path for name, path in layout.controllers.items() if files.can_make_groups(path, "cgroup.procs")}
    if writable:
        return GroupLayout(layout.core, writable)
    enabled = enable_controllers(layout.core, CONTROLLERS, given=delegated is not None)
    return GroupLayout(layout.core, dict.fromkeys(enabled, layout.core))


def own_layout() -> GroupLayout | None:
    """Returns where the groups of this process are; None without a version 2 tree."""
    try:
        return find_layout(_MOUNTS.read_text(), _OWN_GROUPS.read_text())
    except (OSError, ValueError):
        return None


def _below(mount_point: str, root: str, own: str) -> Path:
    """The group's directory; `root` is the part of the hierarchy that the mount shows."""
    relative = own[len(root) :] if root != "/" and own.startswith(root) else own
    return Path(mount_point) / relative.lstrip("/")
