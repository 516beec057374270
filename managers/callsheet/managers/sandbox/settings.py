"""Settings of a sandbox manager."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated

from callsheet.managers.sandbox.network.destinations import Destination
from callsheet.managers.sandbox.node_sharing import NodeSharingSettings
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.options.common import DataDir, default_data_dir
from callsheet.options.declaration import AtLeast, PathRule, Setting, check_least

# Outside the ranges of system accounts, of systemd's dynamic and home users, and of subordinate ids (from 100,000).
POOL_UID_BASE = 70_000
POOL_UID_COUNT = 10_000
# The agent and the smallest command take 5 MiB: with 4 a sandbox does not start, or dies with its first command.
FEWEST_MEMORY_MIB = 8

_MANAGER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

NOT_ISOLATED = (
    "NOT ISOLATED: with --isolation none commands run as this manager's user, and may read and change what that user "
    "may, its tokens included: only for code that you trust"
)
"""Warning of a manager and of `up` if nothing keeps commands in."""


class Isolation(Enum):
    """Ways to keep the commands of a sandbox away from the machine and from each other."""

    BUBBLEWRAP = "bubblewrap"
    DOCKER = "docker"
    NONE = "none"


class CoreSharing(Enum):
    """Ways to divide the cores of a manager among its sandboxes.

    RANKED lets node sharing rank their commands, PLAIN leaves it to the operating system. With RESERVED each
    command has cores of its own.
    """

    RESERVED = "reserved"
    RANKED = "ranked"
    PLAIN = "plain"


IsolationOption = Annotated[
    Isolation, Setting("The isolation of sandboxes.", variable="CALLSHEET_ISOLATION", default=Isolation.BUBBLEWRAP)
]


@dataclass(frozen=True, slots=True)
class StageDirectory:
    """A prepared directory that every sandbox can read and none can write.

    Attributes:
        source: Absolute path. What is in it must be readable for everybody.
        on_python_path: Whether commands find Python packages in it.
    """

    source: Path
    on_python_path: bool = True


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """How a sandbox manager works.

    Attributes:
        manager_id: Of the manager; what it leaves behind when it is killed is known by it.
        cores: Core ids that grants may name and that a command without cores runs on.
        default_memory_mib: For a sandbox whose grant holds no memory.
        default_disk_mib: For an env_reset that names no size; half of its memory if that is less.
        default_max_processes: For an env_reset that names none.
        most_processes: That an env_reset may ask for; an eighth of what the manager may start if that is less.
        max_output_bytes: The most that a command may ask to keep of stdout and of stderr, each.
        max_download_bytes: The most that the files which one env_step returns have together.
        concurrent_creates: Sandboxes that are made at the same time.
        use_control_groups: Whether to use control groups where they are writable.
        provisioning: Which images there are, what is kept of set-ups, and how many sandboxes are admitted.
        bwrap: The bwrap program; None searches as `bubblewrap.find_bwrap` says.
        node_sharing: How commands are ranked.
    """

    manager_id: str = "sandbox"
    data_directory: DataDir = field(default_factory=default_data_dir)
    isolation: IsolationOption = Isolation.BUBBLEWRAP
    stages: Annotated[
        tuple[StageDirectory, ...],
        Setting(
            "Directory that every sandbox can read, with Python packages in it; repeatable.",
            flag="--stage",
            variable="CALLSHEET_STAGE",
            text=Path,
            parse=StageDirectory,
            repeatable=True,
            path=PathRule(exists=True, resolve=True),
        ),
    ] = ()
    cores: frozenset[int] = field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))
    default_memory_mib: Annotated[int, AtLeast(FEWEST_MEMORY_MIB)] = 1024
    default_disk_mib: Annotated[int, AtLeast(1)] = 256
    default_max_processes: Annotated[int, AtLeast(1)] = 128
    most_processes: Annotated[int, AtLeast(1)] = 4096
    max_output_bytes: Annotated[int, AtLeast(1)] = 16 << 20
    max_download_bytes: Annotated[int, AtLeast(1)] = 64 << 20
    concurrent_creates: Annotated[int, AtLeast(1)] = 8
    use_control_groups: bool = True
    delegated_group: Annotated[
        Path | None,
        Setting(
            "Directory of a version 2 control group made for this manager; by default the group that it runs in, if "
            "delegated.",
            flag="--control-group",
            variable="CALLSHEET_CONTROL_GROUP",
        ),
    ] = None
    docker_image: Annotated[
        str,
        Setting(
            "With --isolation docker, the image of sandboxes that name none; an image must have python3, 3.8 or later.",
            variable="CALLSHEET_DOCKER_IMAGE",
        ),
    ] = ""
    network: Annotated[
        tuple[Destination, ...],
        Setting(
            "Destination that an env_reset may request, through a proxy: a name, '*.' and a name for all names below "
            "it, an address, or '*' for any name; repeatable. By default none.",
            metavar="HOST:PORT",
            text=str,
            parse=Destination.parse,
            repeatable=True,
        ),
    ] = ()
    provisioning: ProvisioningSettings = field(default_factory=ProvisioningSettings)
    bwrap: Path | None = None
    core_sharing: Annotated[
        CoreSharing,
        Setting(
            "How commands share cores: ranked by the CPU time that each used, plainly by the operating system, or with "
            "cores reserved for each command.",
            flag="--share-cores",
            variable="CALLSHEET_SHARE_CORES",
            default=CoreSharing.RANKED,
        ),
    ] = CoreSharing.RESERVED
    shared_cores: Annotated[
        int | None,
        Setting(
            "Number of shared cores, without those that other managers of the machine need.",
            flag="--shared-cpus",
            variable="CALLSHEET_SHARED_CPUS",
            default_text="all",
            least=1,
        ),
    ] = None
    node_sharing: NodeSharingSettings = field(default_factory=NodeSharingSettings)

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        if not _MANAGER_ID.fullmatch(self.manager_id):
            raise ValueError(f"manager_id: {self.manager_id!r}: must be 1 to 128 letters, digits, '_', '.' or '-'")
        if not self.data_directory.is_absolute():
            raise ValueError(f"data_directory: {str(self.data_directory)!r}: must be absolute")
        if self.delegated_group is not None and not (self.delegated_group / "cgroup.procs").exists():
            raise ValueError(f"delegated_group: {str(self.delegated_group)!r}: must be a control group's directory")
        if self.isolation is Isolation.NONE and self.network:
            raise ValueError("network: isolation 'none' cannot limit it: commands reach what the machine can")
        if self.isolation is not Isolation.BUBBLEWRAP and self.provisioning.registry.registries:
            rule = "a Docker engine pulls its images itself" if self.isolation is Isolation.DOCKER else "has no images"
            raise ValueError(f"registries: isolation {self.isolation.value!r}: {rule}")
        if self.isolation is not Isolation.BUBBLEWRAP and self.provisioning.builds.build_images:
            raise ValueError(f"build_images: isolation {self.isolation.value!r} cannot use what buildah builds")
        for stage in self.stages:
            if not stage.source.is_absolute() or not stage.source.is_dir():
                raise ValueError(f"stages: {str(stage.source)!r}: must be an absolute path of a directory")
        if not self.cores:
            raise ValueError("cores: must name at least one core")
        if self.shared_cores is not None and not 1 <= self.shared_cores <= len(self.cores):
            raise ValueError(f"shared_cores: {self.shared_cores}: must be between 1 and {len(self.cores)}, the cores")
        check_least(self)
