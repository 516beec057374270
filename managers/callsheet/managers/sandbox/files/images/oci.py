"""Manifests and configurations of images, as registries keep them: read and checked. Pure."""

from __future__ import annotations

import hashlib
import json
import platform
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from callsheet.managers.sandbox.files.images.errors import ImageError, ImageNotFoundError
from callsheet.managers.sandbox.files.images.references import DIGEST
from callsheet.v1.rules.commands import VARIABLE

_INDEXES = frozenset(
    {
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    }
)
_MANIFESTS = frozenset(
    {
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    }
)
_ARCHITECTURES = {
    "x86_64": "amd64",
    "i386": "386",
    "i686": "386",
    "aarch64": "arm64",
    "armv6l": "arm",
    "armv7l": "arm",
}
# Without one a manifest means the first of these; of several that fit, the first that a list has is taken.
_VARIANTS = {"aarch64": ("v8", ""), "armv7l": ("v7", "v6", ""), "armv6l": ("v6", "")}
# The kernel allows 500 lower directories; Docker stops at 127.
MOST_LAYERS = 127


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that a manifest names: "sha256:...", their number, and what they are."""

    digest: str
    size: int
    media_type: str = ""

    @property
    def file_name(self) -> str:
        """Its name in the blobs/sha256 of a layout."""
        return self.digest.removeprefix("sha256:")


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """Parts of an image; the lowest layer comes first."""

    config: Blob
    layers: tuple[Blob, ...]


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How commands begin in an image.

    Attributes:
        environment: Variables of its commands.
        working_directory: An absolute path; empty for none.
        user: Whom its commands run as, as USER[:GROUP]; "" for root.
        diff_ids: Digests of the layers' archives once they are unpacked, the lowest first.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = ""
    user: str = ""
    diff_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Platform:
    """A machine as images name it; of `variants` the first ones fit best."""

    architecture: str
    variants: tuple[str, ...] = ("",)

    @classmethod
    def here(cls) -> Platform:
        """This machine."""
        machine = platform.machine()
        return cls(_ARCHITECTURES.get(machine, machine), _VARIANTS.get(machine, ("",)))


def digest_of(content: bytes) -> str:
    """Returns "sha256:..." of some bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def check_digest(content: bytes, digest: str, what: str) -> None:
    """Raises ImageError, naming what it is, for bytes that are not those of a digest."""
    found = digest_of(content)
    if found != digest:
        raise ImageError(f"{what}: wrong digest: {found} came instead of {digest}")


def choose_manifest(content: bytes, machine: Platform, name: str) -> Blob | None:
    """Returns the manifest for a machine that a list has; None where the content is no list but a manifest itself.

    Raises:
        ImageNotFoundError: The list has none for this machine; the message says for which it has.
        ImageError: It is no list of the OCI's or Docker's format.
    """
    parsed = _parsed(content, f"manifest of {name}")
    if parsed.get("mediaType", "") not in _INDEXES and "manifests" not in parsed:
        return None
    offered: list[str] = []
    best: tuple[int, Blob] | None = None
    for entry in _list(parsed, "manifests", name):
        where = entry.get("platform") or {}
        variant = where.get("variant", "")
        if where.get("os") == "unknown":
            # An attestation about another entry.
            continue
        offered.append("/".join(filter(None, (where.get("os", ""), where.get("architecture", ""), variant))))
        if where.get("os") != "linux" or where.get("architecture") != machine.architecture:
            continue
        if variant in machine.variants:
            rank = machine.variants.index(variant)
            if best is None or rank < best[0]:
                best = rank, _blob(entry, f"manifest of {name}")
    if best is None:
        raise ImageNotFoundError(
            f"image {name!r}: has no variant for linux/{machine.architecture}, "
            f"only for {', '.join(sorted(set(offered))) or 'nothing'}"
        )
    return best[1]


def read_manifest(content: bytes, name: str) -> ImageManifest:
    """Returns what an image consists of.

    Raises:
        ImageError: It is no manifest that can be used; the message says why.
    """
    parsed = _parsed(content, f"manifest of {name}")
    if parsed.get("schemaVersion") == 1:
        raise ImageError(f"image {name!r}: its manifest has the format 1 of Docker, which no registry takes any more")
    media = parsed.get("mediaType", "")
    if (media and media not in _MANIFESTS) or not isinstance(parsed.get("config"), dict):
        raise ImageError(f"image {name!r}: {media or 'what its name means'!r} is no image's manifest")
    layers = tuple(_blob(entry, f"layer of {name}") for entry in _list(parsed, "layers", name))
    if not 1 <= len(layers) <= MOST_LAYERS:
        raise ImageError(f"image {name!r}: has {len(layers)} layers: must have 1 to {MOST_LAYERS}")
    for layer in layers:
        if "encrypted" in layer.media_type or ".tar" not in layer.media_type:
            raise ImageError(f"image {name!r}: layer {layer.digest}: {layer.media_type!r} is no archive of files")
    return ImageManifest(_blob(parsed["config"], f"config of {name}"), layers)


def read_config(content: bytes, layers: int, machine: Platform, name: str) -> ImageConfig:
    """Returns how commands begin in an image with so many layers.

    Raises:
        ImageNotFoundError: It is for another machine.
        ImageError: It is no image's configuration.
    """
    parsed = _parsed(content, f"config of {name}")
    made_for = parsed.get("architecture") or machine.architecture
    if made_for != machine.architecture or parsed.get("os", "linux") != "linux":
        raise ImageNotFoundError(
            f"image {name!r}: is made for {parsed.get('os', 'linux')}/{made_for}, not for linux/{machine.architecture}"
        )
    diff_ids = (parsed.get("rootfs") or {}).get("diff_ids") or []
    if len(diff_ids) != layers or not all(isinstance(each, str) and DIGEST.fullmatch(each) for each in diff_ids):
        raise ImageError(f"image {name!r}: its config names {len(diff_ids)} archives for {layers} layers")
    config = parsed.get("config") or {}
    directory = str(config.get("WorkingDir") or "")
    return ImageConfig(
        environment=_environment(config.get("Env") or []),
        working_directory=posixpath.normpath(f"/{directory}").replace("//", "/") if directory else "",
        user=str(config.get("User") or ""),
        diff_ids=tuple(diff_ids),
    )


def _environment(entries: Sequence[object]) -> dict[str, str]:
    """The variables that a process can have; others cannot be named in a command either."""
    pairs = (str(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in pairs if VARIABLE.fullmatch(name) and "\0" not in value}


def _parsed(content: bytes, what: str) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except ValueError as error:
        raise ImageError(f"{what}: is no JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ImageError(f"{what}: must be a JSON object")
    return parsed


def _list(parsed: Mapping[str, Any], key: str, name: str) -> list[dict[str, Any]]:
    entries = parsed.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ImageError(f"image {name!r}: {key} of its manifest must be a list of objects")
    return entries


def _blob(entry: Mapping[str, Any], what: str) -> Blob:
    digest, size = entry.get("digest"), entry.get("size")
    if entry.get("urls"):
        # Whoever wrote the manifest would choose what this machine asks for, in networks that are not the writer's.
        raise ImageError(f"{what}: urls {str(entry['urls'])[:200]!r}: must be in its registry, and nowhere else")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise ImageError(f"{what}: digest {str(digest)[:200]!r}: must be a SHA-256")
    if not isinstance(size, int) or size < 0:
        raise ImageError(f"{what}: size {str(size)[:200]!r}: must be a number of bytes")
    return Blob(digest, size, str(entry.get("mediaType", "")))
