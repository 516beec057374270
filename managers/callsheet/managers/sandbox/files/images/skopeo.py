"""Asks registries by skopeo, a child process for each question."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
from callsheet.credentials.masking import without_credentials
from callsheet.managers.sandbox.files.images.errors import ImageError, ImageNotFoundError, RegistryLimitedError
from callsheet.managers.sandbox.files.images.references import ImageReference, is_loopback

HOW_TO_INSTALL_SKOPEO = "install the system package skopeo, which copies images from registries"
_QUESTION_S = 120.0
_SHOWN = 600
_POLICIES = ("~/.config/containers/policy.json", "/etc/containers/policy.json")
# What registries and skopeo say, in small letters.
_LIMITED = ("toomanyrequests", "too many requests", "statuscode: 429", "status: 429")
_UNKNOWN = (
    "manifest unknown",
    "name unknown",
    "not known to registry",
    "statuscode: 404",
    "status: 404",
    "(not found)",
)
_REFUSED = ("unauthorized", "authentication required", "denied", "forbidden")
_RETRY_AFTER = re.compile(r"retry.after\W{1,4}(\d{1,6})", re.IGNORECASE)
_MESSAGE = re.compile(r'level=(?:fatal|error) msg="((?:[^"\\\n]|\\.)*)"')


def find_skopeo() -> Path | None:
    """Returns the program: of PATH, else unpacked below this Python environment; None if there is none."""
    found = shutil.which("skopeo") or shutil.which("skopeo", path=str(_unpacked() / "usr/bin"))
    return Path(found) if found is not None else None


def _unpacked() -> Path:
    return Path(sys.prefix) / "system"


def _environment(program: Path) -> dict[str, str]:
    """Returns the environment of skopeo; an unpacked skopeo finds its libraries beside it."""
    environment = {**os.environ, "LC_ALL": "C"}
    if program.is_relative_to(_unpacked()):
        libraries = [*map(str, _unpacked().glob("usr/lib/*-linux-gnu*")), os.environ.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    return environment


class Skopeo:
    """Questions to registries. A question that is cancelled leaves no process behind."""

    def __init__(self, program: Path, authfile: Path | None, insecure: Sequence[str], pull_s: float) -> None:
        """Args:
        program: skopeo.
        authfile: Names and passwords of registries, as `skopeo login` writes them; None for its own usual places.
        insecure: Registries that may be asked without TLS, or with a certificate that nobody vouches for.
        pull_s: The most that the copy of one image may take, in seconds.
        """
        self._program = program
        self._authfile = authfile
        self._insecure = frozenset(insecure)
        self._pull_s = pull_s

    async def manifest(self, reference: ImageReference) -> bytes:
        """Returns what a registry has under a name, as it is: a manifest or a list of some; raises as `copy` does."""
        return await self._ask(reference, ["inspect", "--raw"], _QUESTION_S, [f"docker://{reference}"], prefix="")

    async def config(self, reference: ImageReference) -> bytes:
        """Returns the configuration of an image, as it is; raises as `copy` does."""
        question = ["inspect", "--config", "--raw"]
        return await self._ask(reference, question, _QUESTION_S, [f"docker://{reference}"], prefix="")

    async def copy(self, reference: ImageReference, layout: Path) -> None:
        """Copies the blobs of an image to the blobs/sha256 of a layout; those that are there already are left out.

        Raises:
            ImageNotFoundError: The registry has no such image, or gives it to nobody without a password.
            RegistryLimitedError: The registry wants to be left alone.
            ImageError: It took too long or failed for another reason.
            OSError: skopeo cannot be started.
        """
        # What is not compressed must not be compressed on the way: it would have another digest.
        question = ["copy", "--quiet", "--dest-oci-accept-uncompressed-layers"]
        await self._ask(reference, question, self._pull_s, [f"docker://{reference}", f"oci:{layout}"], prefix="src-")

    async def _ask(
        self, reference: ImageReference, question: Sequence[str], seconds: float, names: Sequence[str], prefix: str
    ) -> bytes:
        command = [str(self._program), *self._policy(), *question]
        if self._authfile is not None:
            command.append(f"--{prefix}authfile={self._authfile}")
        if reference.registry in self._insecure or is_loopback(reference.registry):
            command.append(f"--{prefix}tls-verify=false")
        with anyio.move_on_after(seconds) as waiting:
            try:
                environment = _environment(self._program)
                done = await anyio.run_process([*command, *names], check=False, stdin=None, env=environment)
            except FileNotFoundError as error:
                raise ImageError(
                    f"image {str(reference)!r}: there is no skopeo here: {HOW_TO_INSTALL_SKOPEO}"
                ) from error
        if waiting.cancelled_caught:
            raise ImageError(f"image {str(reference)!r}: {reference.registry} took more than {seconds:g} s")
        if done.returncode:
            raise refusal(reference, done.stderr.decode(errors="replace"))
        return done.stdout

    def _policy(self) -> list[str]:
        """Returns no option where a policy file says which images may be copied; without one skopeo would copy none."""
        return [] if any(Path(path).expanduser().exists() for path in _POLICIES) else ["--insecure-policy"]


def refusal(reference: ImageReference, said: str) -> ImageError:
    """Returns the failure for skopeo's error output `said`; a pure function."""
    messages = _MESSAGE.findall(said)
    text = without_credentials((messages[-1] if messages else said.strip()).replace('\\"', '"'))[-_SHOWN:]
    # A word in the image's own name says nothing about the failure.
    lower = text.replace(str(reference), "").lower()
    message = f"image {str(reference)!r}: {reference.registry} said: {text}"
    if any(word in lower for word in _LIMITED):
        told = _RETRY_AFTER.search(said)
        return RegistryLimitedError(message, float(told[1]) if told else None)
    if any(word in lower for word in _REFUSED):
        hint = "the image is not there, or the manager needs a password for it: see the setting registry_authfile"
        return ImageNotFoundError(f"{message}; {hint}")
    if any(word in lower for word in _UNKNOWN):
        return ImageNotFoundError(message)
    return ImageError(message)
