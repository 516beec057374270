"""Settings of how trajectories get their sandboxes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from callsheet.managers.sandbox.build_settings import BuildSettings
from callsheet.managers.sandbox.registry_settings import RegistrySettings
from callsheet.options.declaration import AtLeast, PathRule, Setting, check_least


@dataclass(frozen=True, slots=True)
class ProvisioningSettings:
    """How trajectories get their sandboxes.

    Attributes:
        registry: Which registries images may come from besides.
        builds: Whether and how images are built of Dockerfiles.
        node_memory_mib: What the node is registered with; it limits sandboxes by need. 0 if it is not known.
        largest_set_up_mib: The most that is kept of one set-up.
        most_creations: Sandboxes that are made or wait to be made at the same time; more are refused.
        creation_pause_s: Pause after a first failure to make a sandbox; it doubles with each further one in a row.
        longest_creation_pause_s: Up to this.
    """

    images: Annotated[
        Path | None,
        Setting(
            "Image store: a directory of root file systems, as directories or archives, that env_reset can name.",
            variable="CALLSHEET_IMAGES",
            path=PathRule(exists=True, resolve=True),
        ),
    ] = None
    registry: RegistrySettings = field(default_factory=RegistrySettings)
    builds: BuildSettings = field(default_factory=BuildSettings)
    layer_cache_mib: Annotated[
        int,
        Setting(
            "The most disk for unpacked images and for the files of set-ups, in MiB.",
            variable="CALLSHEET_LAYER_CACHE_MIB",
            least=1,
        ),
    ] = 20 << 10
    keep_set_ups: Annotated[
        bool, Setting("Start a sandbox with the files that the same set-up left before, instead of repeating it.")
    ] = True
    largest_set_up_mib: Annotated[int, AtLeast(1)] = 1 << 10
    memory_limit_mib: Annotated[
        int | None,
        Setting(
            "The most memory of all sandboxes of this manager together, in MiB. With --memory-by-need a sandbox that "
            "does not fit waits; otherwise it is refused.",
            flag="--sandbox-memory-mib",
            variable="CALLSHEET_SANDBOX_MEMORY_MIB",
            default_text="the node's memory by need, otherwise no limit but what the scheduler books",
            least=1,
        ),
    ] = None
    memory_by_need: Annotated[
        bool,
        Setting(
            "Give a sandbox its whole memory only while a command runs in it, and between commands the memory that it "
            "holds. Otherwise it has the whole memory for its life. Needs control groups that bound memory.",
            variable="CALLSHEET_MEMORY_BY_NEED",
        ),
    ] = True
    warm_memory_mib: Annotated[
        int | None,
        Setting(
            "The most memory of sandboxes that are ready before a request, in MiB; 0 keeps none ready.",
            variable="CALLSHEET_WARM_MEMORY_MIB",
            default_text="what the machine has for actions",
            least=0,
        ),
    ] = None
    node_memory_mib: int = 0
    most_creations: Annotated[int, AtLeast(1)] = 4096
    creation_pause_s: float = 0.1
    longest_creation_pause_s: float = 5.0

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        if self.images is not None and not (self.images.is_absolute() and self.images.is_dir()):
            raise ValueError(f"images: {str(self.images)!r}: must be an absolute path of a directory")
        check_least(self)
        for name in ("creation_pause_s", "longest_creation_pause_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: {value}: must be finite and above 0")
