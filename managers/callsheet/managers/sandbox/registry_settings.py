"""Settings of the registries that images come from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from callsheet.options.declaration import AtLeast, PathRule, Setting, check_least

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
    """Registries that images may come from, and how they are asked.

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
