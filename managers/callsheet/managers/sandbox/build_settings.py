"""Settings of building images from Dockerfiles."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from callsheet.options.declaration import Setting, check_least


class BuildsFor(Enum):
    """Owners of the Dockerfiles that are built.

    OPERATOR is whoever reaches a scheduler that asks for no tokens: where it asks for them, nothing is built. JOBS are
    callers with tokens, who trust each other with nothing: their builds have a network of their own.
    """

    OPERATOR = "operator"
    JOBS = "jobs"


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """Settings of building images from Dockerfiles.

    Attributes:
        callers_have_tokens: Whether the scheduler asks for tokens, as far as this manager knows: it has one itself.
    """

    build_images: Annotated[
        bool,
        Setting(
            "Build the Dockerfiles of env_resets with buildah. Their RUN steps run outside of any sandbox: only for "
            "Dockerfiles that you trust.",
            variable="CALLSHEET_BUILD_IMAGES",
        ),
    ] = False
    builds_for: Annotated[
        BuildsFor,
        Setting(
            "The owners of Dockerfiles that are built: operator builds with the machine's network, and nothing for "
            "callers with tokens; jobs also builds for jobs with tokens, with the destinations of --network only.",
            variable="CALLSHEET_BUILDS_FOR",
        ),
    ] = BuildsFor.OPERATOR
    concurrent_builds: Annotated[
        int,
        Setting("The most images that are built at once.", variable="CALLSHEET_CONCURRENT_BUILDS", least=1),
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
            "The most disk for base images between builds, in MiB.",
            variable="CALLSHEET_BUILD_STORAGE_MIB",
            least=0,
        ),
    ] = 20 << 10
    callers_have_tokens: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        check_least(self)
