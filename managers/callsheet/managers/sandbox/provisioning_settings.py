"""Settings of how trajectories get their sandboxes, of the registries that images come from, and of builds."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated

from callsheet.options.declaration import AtLeast, PathRule, Setting, check_least

# Settings of the registries that images come from.

DOCKER_HUB = "docker.io"
ANY_REGISTRY = "*"
REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[1-9][0-9]{0,4})?", re.IGNORECASE)


def _registry(name: str) -> str:
    if not REGISTRY.fullmatch(name):
        raise ValueError(f"{name!r}: must be HOST or HOST:PORT of a registry")
    return name


def _any_or_registry(name: str) -> str:
    return name if name == ANY_REGISTRY else _registry(name)


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Which registries images may come from, and how they are asked.

    Attributes:
        pull_pause_s: Seconds for which a registry is left alone after it said for the first time that it was asked too
            often and did not say for how long; doubled with each further time.
        longest_pull_pause_s: Up to this.
        question_every_s: Seconds between two questions to one registry.
        longest_turn_s: An image whose registry cannot be asked for longer than this fails with "registry_limited".
    """

    registries: Annotated[
        tuple[str, ...],
        Setting(
            "Registry that images may be pulled from, such as docker.io, or '*' for any; repeatable. A name without a "
            "registry means the first one. By default nothing is pulled.",
            flag="--registry",
            variable="CALLSHEET_REGISTRY",
            metavar="HOST[:PORT]",
            text=str,
            parse=_any_or_registry,
            repeatable=True,
        ),
    ] = ()
    insecure_registries: Annotated[
        tuple[str, ...],
        Setting(
            "Registry to use without TLS, or with a certificate that no authority signed; repeatable. Registries on "
            "the machine's own loopback address need no entry.",
            flag="--insecure-registry",
            variable="CALLSHEET_INSECURE_REGISTRY",
            metavar="HOST[:PORT]",
            text=str,
            parse=_registry,
            repeatable=True,
        ),
    ] = ()
    registry_authfile: Annotated[
        Path | None,
        Setting(
            "File with names and passwords of registries, as skopeo login writes it.",
            variable="CALLSHEET_REGISTRY_AUTHFILE",
            default_text="where skopeo looks for it",
            path=PathRule(exists=True, file=True, directory=False, resolve=True),
        ),
    ] = None
    image_tag_s: Annotated[
        float,
        Setting(
            "Seconds for which the last look-up of a tag holds.",
            variable="CALLSHEET_IMAGE_TAG_S",
            least=0,
        ),
    ] = 3600.0
    concurrent_pulls: Annotated[
        int,
        Setting("The most images that are pulled at once.", variable="CALLSHEET_CONCURRENT_PULLS", least=1),
    ] = 2
    pull_timeout_s: Annotated[
        float,
        Setting(
            "The most seconds that the transfer of one image may take.",
            flag="--pull-timeout",
            variable="CALLSHEET_PULL_TIMEOUT",
            least=1,
        ),
    ] = 1800.0
    pull_pause_s: Annotated[float, AtLeast(0.1)] = 10.0
    longest_pull_pause_s: Annotated[float, AtLeast(0.1)] = 600.0
    question_every_s: Annotated[float, AtLeast(0)] = 0.1
    longest_turn_s: Annotated[float, AtLeast(0)] = 60.0

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        if self.registry_authfile is not None and not self.registry_authfile.is_absolute():
            raise ValueError(f"registry_authfile: {str(self.registry_authfile)!r}: must be absolute")
        check_least(self)

    @property
    def short_names_at(self) -> str:
        """The registry of names without one."""
        return next((name for name in self.registries if name != ANY_REGISTRY), DOCKER_HUB)


# Settings of building images of Dockerfiles.


class BuildsFor(Enum):
    """Whose Dockerfiles are built.

    OPERATOR is whoever reaches a scheduler that asks for no tokens: where it asks for them, nothing is built. JOBS are
    callers with tokens, who trust each other with nothing: their builds have a network of their own.
    """

    OPERATOR = "operator"
    JOBS = "jobs"


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """Whether and how images are built of Dockerfiles.

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
