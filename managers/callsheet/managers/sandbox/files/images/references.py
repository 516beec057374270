"""Names of images in registries, as people write them. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from callsheet.managers.sandbox.files.images.errors import ImageNotFoundError
from callsheet.managers.sandbox.registry_settings import ANY_REGISTRY, DOCKER_HUB, REGISTRY

_HUBS_NAMES = frozenset({"index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})

_HUBS_OWN = "library"

_LATEST = "latest"

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"

_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")

_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image in a registry.

    Attributes:
        registry: HOST or HOST:PORT.
        repository: The image's name there.
        tag: Empty where a digest says it all.
        digest: "sha256:..." of its manifest; empty where a tag names it.
    """

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}" + (f"@{self.digest}" if self.digest else f":{self.tag}")

    def pinned(self, digest: str) -> ImageReference:
        """The same image by a digest, which can never name another one."""
        return replace(self, tag="", digest=digest)


def read_reference(name: str, short_names_at: str = DOCKER_HUB) -> ImageReference:
    """Returns the image that a name means.

    Args:
        name: [REGISTRY/]REPOSITORY[:TAG][@DIGEST]. A first component with "." or ":", or "localhost", is a registry.
        short_names_at: The registry of names without one.

    Raises:
        ImageNotFoundError: No registry can have an image of this name.
    """
    rest, _, digest = name.partition("@")
    first, slash, below = rest.partition("/")
    named = bool(slash) and ("." in first or ":" in first or first == "localhost")
    registry, path = (first, below) if named else (short_names_at, rest)
    repository, _, tag = path.partition(":")
    if registry in _HUBS_NAMES:
        registry = DOCKER_HUB
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"{_HUBS_OWN}/{repository}"
    _check(name, "registry", registry, REGISTRY)
    _check(name, "repository", repository, _REPOSITORY)
    if ":" in path:
        _check(name, "tag", tag, _TAG)
    if "@" in name:
        _check(name, "digest", digest, DIGEST)
        # With both, the digest is what counts, as everywhere.
        return ImageReference(registry, repository, digest=digest)
    return ImageReference(registry, repository, tag or _LATEST)


def may_pull(reference: ImageReference, registries: Sequence[str]) -> bool:
    """Returns whether a registry is among those that a manager may pull from."""
    return ANY_REGISTRY in registries or reference.registry in registries


def is_loopback(registry: str) -> bool:
    """Returns whether a registry is on this machine itself, so that what it sends passes no network."""
    host = registry.rpartition(":")[0] if ":" in registry else registry
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(name: str, part: str, value: str, rule: re.Pattern[str]) -> None:
    if not rule.fullmatch(value):
        raise ImageNotFoundError(f"image {name[:300]!r}: its {part} {value[:200]!r} is none that a registry can have")
