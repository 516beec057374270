"""Settings of building images of Dockerfiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from callsheet.options.declaration import Setting, check_least


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """Whether and how images are built of Dockerfiles."""

    build_images: Annotated[
        bool,
        Setting(
            "Build images of Dockerfiles with buildah, which an env_reset may bring along. Their RUN steps run outside "
            "of any sandbox and reach the machine's network: only for Dockerfiles that you trust.",
            variable="CALLSHEET_BUILD_IMAGES",
        ),
    ] = False
    concurrent_builds: Annotated[
        int,
        Setting("Images that are built at the same time.", variable="CALLSHEET_CONCURRENT_BUILDS", least=1),
    ] = 1
    build_timeout_s: Annotated[
        float,
        Setting(
            "The most seconds that the build of one image may take.",
            flag="--build-timeout",
            variable="CALLSHEET_BUILD_TIMEOUT",
            least=1,
        ),
    ] = 1800.0
    build_storage_mib: Annotated[
        int,
        Setting(
            "The most that images which others are built on may take on disk between builds, in MiB.",
            variable="CALLSHEET_BUILD_STORAGE_MIB",
            least=0,
        ),
    ] = 20 << 10

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        check_least(self)
        if not math.isfinite(self.build_timeout_s):
            raise ValueError(f"build_timeout_s: {self.build_timeout_s}: must be finite")
