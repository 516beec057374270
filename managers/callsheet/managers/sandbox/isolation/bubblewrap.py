"""Sandboxes made by bubblewrap in namespaces of their own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from callsheet.managers.sandbox.agent_client.packets import memory_file
from callsheet.managers.sandbox.agent_client.program import AGENT_START, COMPILED_START, agent_files
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.cgroups import GroupLayout
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.files.host_python import python_below
from callsheet.managers.sandbox.files.root_filesystem import (
    APT_CONF,
    APT_CONFIG,
    COMMAND_PATH,
    FILES_PER_MIB,
    HOST_NAME,
    IMAGE_COMMAND_PATH,
    OWN_PLACE,
    RUN_MIB,
    SHARED_MEMORY_MIB,
    SYSTEM_SHOWN,
    TEMPORARY,
    WORK,
    Overlay,
    bind_options,
    image_options,
    overlay_request,
    overlays_of,
)
from callsheet.managers.sandbox.files.system_shown import SYSTEM, library_path, system_options
from callsheet.managers.sandbox.isolation.kernel_bounds import command_limits, kernel_bounds, most_netlink_sockets
from callsheet.managers.sandbox.isolation.launcher_client import (
    SpawnRequest,
    probe_overlays,
    probe_separate,
    probe_system_v,
)
from callsheet.managers.sandbox.isolation.processes import ProcessPlan
from callsheet.managers.sandbox.launcher.names import with_hosts
from callsheet.managers.sandbox.network.destinations import network_words
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.managers.sandbox.walls.asking_filter import build_asking_filter
from callsheet.managers.sandbox.walls.landlock import landlock_capabilities
from callsheet.managers.sandbox.walls.pool_users import UserPool
from callsheet.managers.sandbox.walls.seccomp import Unbounded, build_filter

_AGENT_INSIDE = f"{OWN_PLACE}/agent"
_ASKING_FILTER_INSIDE = f"{OWN_PLACE}/asking-filter"
_STAGES_INSIDE = f"{OWN_PLACE}/stage"
_UID_INSIDE = 1000
# Where the launcher mounts overlays as root, in a mount namespace of each sandbox.
_OVERLAYS_OF_ROOT = "/mnt/overlays"
# Directories of / that are links into /usr on merged systems and real directories on others.
_WRITTEN_FILES: Mapping[str, bytes] = {
    "/etc/passwd": b"sandbox:x:1000:1000:sandbox:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "/etc/group": b"sandbox:x:1000:\nnogroup:x:65534:\n",
    "/etc/hosts": with_hosts(b"", HOST_NAME),
    "/etc/hostname": f"{HOST_NAME}\n".encode(),
    "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
}


def find_bwrap() -> Path | None:
    """Returns the bwrap program: CALLSHEET_BWRAP, else PATH, else unpacked below this Python environment.

    A CALLSHEET_BWRAP that names no program is answered with None, not with another program.
    """
    named = os.environ.get("CALLSHEET_BWRAP")
    if named:
        return Path(named) if os.access(named, os.X_OK) else None
    found = shutil.which("bwrap")
    if found is not None:
        return Path(found)
    unpacked = Path(sys.prefix, "system/usr/bin/bwrap")
    return unpacked if os.access(unpacked, os.X_OK) else None


def find_system_python() -> Path | None:
    """Returns the Python that runs inside sandboxes: the first python3 of /usr/local/bin, /usr/bin and /bin."""
    found = shutil.which("python3", path=COMMAND_PATH)
    return Path(found) if found is not None else None


class BubblewrapPlanner:
    """Plans the start of the first process of a sandbox under bwrap."""

    def __init__(self, settings: SandboxSettings, layout: GroupLayout | None, directory: Path) -> None:
        """Args:
            directory: The manager's own.

        Raises:
            SandboxCreateError: There is no bwrap, no Python or no seccomp table here.
        """
        found = settings.bwrap or find_bwrap()
        if found is None:
            raise SandboxCreateError(
                "there is no bwrap program (bubblewrap): not in CALLSHEET_BWRAP, PATH or .venv/system"
            )
        if find_system_python() is None:
            raise SandboxCreateError(f"there is no python3 in {COMMAND_PATH} to run inside the sandboxes")
        self._bwrap = found.resolve()
        self._python = str(find_system_python())
        self._settings = settings
        self._by_cpuset = layout is not None and "cpuset" in layout.controllers
        self._layout = layout
        self._overlay_base = _OVERLAYS_OF_ROOT if os.geteuid() == 0 else str(directory / "overlays")
        # Never as host root: a payload with the kernel's user id 0 could write the host's settings below /proc.
        self._users = UserPool.of_manager(settings.manager_id) if os.geteuid() == 0 else None
        controllers = layout.controllers if layout is not None else {}
        self._counts_memory = "memory" in controllers
        self._separates = probe_separate().works
        self._bounds_system_v = probe_system_v().works
        unbounded = Unbounded(memory=not self._counts_memory, waking=layout is None, system_v=not self._bounds_system_v)
        try:
            self._filter = build_filter(forbid_affinity=not self._by_cpuset, unbounded=unbounded)
        except RuntimeError as error:
            raise SandboxCreateError(str(error)) from error

    @property
    def overlays(self) -> bool:
        """True if the kernel lets the launcher mount overlays."""
        return probe_overlays().works

    @property
    def begins_with_copies(self) -> bool:
        """As a layer of overlays."""
        return self.overlays

    def capabilities(self) -> Mapping[str, str]:
        """Describes the isolation of bwrap."""
        user = "a pool user for each sandbox" if self._users is not None else "the manager's own user for all sandboxes"
        return {
            "isolation": "bubblewrap",
            "user": user,
            "own_user": "yes" if self._users is not None else "no",
            "shared_memory": "group" if self._counts_memory else "counted by the sandbox's first process",
            "own_file_locks": "yes" if self._separates else "no",
            "system_v": "bounded" if self._bounds_system_v else "refused",
            "network": network_words(self._settings.network),
            "filesystem": "system read-only; working and temporary directories in memory, sized",
            "images": "writable overlays in memory, sized" if self.overlays else f"none: {probe_overlays().reason}",
            "seccomp": "refuses namespaces, mounts, tracing, kernel interfaces and foreign socket families",
            **landlock_capabilities(),
        }

    def plan(self, spec: SandboxSpec, stages: Sequence[str], resources: ExitStack) -> ProcessPlan:
        """Returns the process to start. Descriptors it opens are closed with `resources`."""

        def opened(descriptor: int) -> int:
            resources.callback(os.close, descriptor)
            return descriptor

        agent = {f"{_AGENT_INSIDE}/{name}": content for name, content in agent_files(Path(self._python)).items()}
        files = {**({APT_CONFIG: APT_CONF} if spec.root.image else _WRITTEN_FILES), **agent}
        files = {**files, _ASKING_FILTER_INSIDE: build_asking_filter(memory=not self._counts_memory)}
        inherited = [opened(memory_file("callsheet-seccomp", self._filter))]
        inherited += [opened(memory_file("callsheet-file", content)) for content in files.values()]
        # Descriptor 0 is the agent's socket; the others follow in this order.
        named = {path: f"{{fd:{index}}}" for index, path in enumerate(files, start=2)}
        stages_inside = {stage: f"{_STAGES_INSIDE}/{index}" for index, stage in enumerate(stages)}
        packages = _packages(self._settings, list(stages_inside.values()))
        overlays = self._overlays(spec)
        program = opened(os.open(self._bwrap, os.O_RDONLY | os.O_CLOEXEC))
        users = self._users
        uid = users.take() if users is not None else None
        return ProcessPlan(
            SpawnRequest(
                argv=self._arguments(spec, named, stages_inside, overlays),
                program=program,
                environment=library_path(self._bwrap),
                uid=uid,
                inherited=inherited,
                overlays=overlay_request(self._overlay_base, overlays, spec.disk_mib),
                separate=[SYSTEM, *stages] if self._separates else [],
            ),
            temporary=TEMPORARY,
            agent_directory=_AGENT_INSIDE,
            environment={**_default_environment(spec), **({"PYTHONPATH": ":".join(packages)} if packages else {})},
            packages=packages,
            limits=self._limits(spec),
            clean_up=lambda: users.give_back(uid) if users is not None and uid is not None else None,
            bounds=kernel_bounds(spec, _most_files(spec, in_memory=not overlays), system_v=self._bounds_system_v),
        )

    def _overlays(self, spec: SandboxSpec) -> list[Overlay]:
        overlays = overlays_of(spec.root)
        if overlays and self._users is None:
            os.makedirs(self._overlay_base, mode=0o700, exist_ok=True)
        return overlays

    def _arguments(
        self, spec: SandboxSpec, files: Mapping[str, str], stages: Mapping[str, str], overlays: Sequence[Overlay]
    ) -> list[str]:
        """The command line of bwrap. `files` are descriptors by path; `stages` are paths inside by paths outside."""
        image = bool(spec.root.image)
        binds = list(bind_options(self._overlay_base, overlays))
        python = python_below(Path(self._python), SYSTEM_SHOWN) if image else (self._python,)
        start = next(path for name in (COMPILED_START, AGENT_START) if (path := f"{_AGENT_INSIDE}/{name}") in files)
        return [
            "bwrap",
            *_namespace_options(*((spec.root.user.uid, spec.root.user.gid) if image else (_UID_INSIDE, _UID_INSIDE))),
            *([*binds, *image_options()] if image else system_options()),
            *_written_options(files),
            *(word for pair in stages.items() for word in ("--ro-bind", *pair)),
            *_device_options(spec, counts_memory=self._counts_memory),
            *([] if image else binds or _memory_options(spec)),
            *("--remount-ro", OWN_PLACE if image else "/"),
            *("--seccomp", "{fd:1}", "--chdir", WORK, "--", *python, "-I", "-S"),
            *(start, "{fd:0}", WORK, TEMPORARY),
            *(_ASKING_FILTER_INSIDE, str(most_netlink_sockets(spec.memory_mib))),
            *(() if self._counts_memory else (str(spec.memory_mib << 20),)),
        ]

    def _limits(self, spec: SandboxSpec) -> Mapping[str, tuple[int, int]]:
        """Returns limits that groups do not set. Inside the user namespace RLIMIT_NPROC counts only this sandbox."""
        controllers = self._layout.controllers if self._layout is not None else {}
        processes = spec.max_processes + 1
        return {
            **command_limits(spec, memory_counted="memory" in controllers, own_user=self._users is None),
            **({} if "pids" in controllers else {"RLIMIT_NPROC": (processes, processes)}),
        }


def _most_files(spec: SandboxSpec, *, in_memory: bool) -> Mapping[str, int]:
    """One for each page of their size: an empty file takes no space and still memory."""
    sizes_mib = {"/dev/shm": min(SHARED_MEMORY_MIB, spec.disk_mib)}
    if in_memory:
        sizes_mib.update({TEMPORARY: spec.disk_mib, WORK: spec.disk_mib})
    if spec.root.image:
        sizes_mib["/run"] = RUN_MIB
    return {path: size * FILES_PER_MIB for path, size in sizes_mib.items()}


def _packages(settings: SandboxSettings, stages: Sequence[str]) -> list[str]:
    """Returns the directories of Python packages for commands: those of the stages that ask for it."""
    return [path for stage, path in zip(settings.stages, stages, strict=True) if stage.on_python_path]


def _default_environment(spec: SandboxSpec) -> Mapping[str, str]:
    image, user = bool(spec.root.image), spec.root.user
    return {
        "PATH": IMAGE_COMMAND_PATH if image else COMMAND_PATH,
        "HOME": user.home if image else TEMPORARY,
        "TMPDIR": TEMPORARY,
        "LANG": "C.UTF-8",
        "USER": user.name if image else "sandbox",
        **({"APT_CONFIG": APT_CONFIG} if image else {}),
    }


def _namespace_options(uid: int, gid: int) -> Iterator[str]:
    yield from ("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")
    yield from ("--uid", str(uid), "--gid", str(gid), "--hostname", HOST_NAME)
    yield from ("--disable-userns", "--cap-drop", "ALL", "--clearenv")
    yield from ("--die-with-parent", "--new-session", "--as-pid-1")


def _written_options(named: Mapping[str, str]) -> Iterator[str]:
    for path, descriptor in named.items():
        yield from ("--perms", "0444", "--file", descriptor, path)


def _device_options(spec: SandboxSpec, *, counts_memory: bool) -> Iterator[str]:
    """Devices and processes. bwrap's own /dev would leave /dev/shm unbounded."""
    shared = str(min(SHARED_MEMORY_MIB, spec.disk_mib) << 20)
    yield from ("--dev", "/dev")
    if not counts_memory:
        # It reads the same and cannot be mapped: a shared mapping of /dev/zero is memory that nobody counts.
        yield from ("--dev-bind", "/dev/full", "/dev/zero")
    yield from ("--perms", "1777", "--size", shared, "--tmpfs", "/dev/shm", "--remount-ro", "/dev")
    yield from ("--proc", "/proc")
    if not spec.root.image:
        yield from ("--dir", "/var", "--symlink", "../tmp", "/var/tmp")


def _memory_options(spec: SandboxSpec) -> Iterator[str]:
    """The writable places, each of a size."""
    disk = str(spec.disk_mib << 20)
    yield from ("--perms", "1777", "--size", disk, "--tmpfs", TEMPORARY)
    yield from ("--perms", "0755", "--size", disk, "--tmpfs", WORK)
