"""Builds images by buildah, a child process for each of its commands."""

from __future__ import annotations

import io
import json
import os
import posixpath
import re
import shutil
import signal
import sys
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
from callsheet.managers.sandbox.files.images import build_child
from callsheet.managers.sandbox.files.images.dockerfiles import HEREDOCS, rewrite
from callsheet.managers.sandbox.files.images.oci import ImageBuildError, ImageError, is_loopback
from callsheet.managers.sandbox.files.root_filesystem import APT_CONF, APT_CONFIG, remove_directory
from callsheet.managers.sandbox.provisioning_settings import ANY_REGISTRY, RegistrySettings

HOW_TO_INSTALL_BUILDAH = "install the system package buildah, which builds images of Dockerfiles"
_SHOWN = 3000
_SHORT_S = 300.0
_PULLING = ("initializing source", "pinging container registry", "reading manifest", "reading blob", "writing blob")
_PASSED = re.compile(r"(?:https?|ftp|all|no)_proxy", re.IGNORECASE)
# The manager's user's authorities of registries, in its environment and below its home: buildah has another home.
_AUTHORITIES = "SSL_CERT_FILE"
_CERTIFICATES = Path(".config/containers/certs.d")
_ANYTHING = [{"type": "insecureAcceptAnything"}]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """What an image is built of.

    Attributes:
        key: Names it: alike for the same content, Dockerfile and arguments.
        context: A tar archive.
        path: Of the Dockerfile in the archive.
        arguments: Values of its ARGs.
        timeout_s: The most seconds that the build may take.
    """

    key: str
    context: bytes
    path: str
    arguments: Mapping[str, str]
    timeout_s: float


def find_buildah() -> Path | None:
    """Returns the program; None if there is none."""
    found = shutil.which("buildah")
    return Path(found) if found is not None else None


def signature_policy(settings: RegistrySettings, operators: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the policy by which a build may begin with images of the manager's registries and of no others. Pure.

    Args:
        settings: Names the registries.
        operators: The machine's policy.json; what that demands of an allowed registry still holds.
    """
    given = operators or {}
    default = given.get("default", _ANYTHING)
    docker: Mapping[str, Any] = given.get("transports", {}).get("docker", {})
    if ANY_REGISTRY in settings.registries:
        allowed = {"": docker.get("", default), **docker}
    else:
        allowed = {name: docker.get(name, default) for name in settings.registries}
        allowed |= {scope: rule for scope, rule in docker.items() if scope.partition("/")[0] in settings.registries}
    local = {name: {"": _ANYTHING} for name in ("containers-storage", "oci")}
    return {"default": [{"type": "reject"}], "transports": {"docker": allowed, **local}}


def registries_conf(settings: RegistrySettings) -> str:
    """Returns what buildah reads of registries: which need no TLS, and that none has short names. Pure."""
    named = [name for name in settings.registries if name != ANY_REGISTRY]
    insecure = [name for name in named if is_loopback(name)] + list(settings.insecure_registries)
    parts = ["unqualified-search-registries = []"]
    parts += [f"[[registry]]\nlocation = {json.dumps(name)}\ninsecure = true" for name in dict.fromkeys(insecure)]
    return "\n".join([*parts, ""])


class Buildah:
    """Builds in one directory, which its storage lies in."""

    def __init__(self, program: Path, directory: Path, settings: RegistrySettings) -> None:
        """Blocks: writes what buildah reads.

        Args:
            program: buildah.
            directory: Belongs to this alone.
            settings: The registries that images may be built on.
        """
        self._program = program
        self._directory = directory
        self._as_root = os.geteuid() == 0
        self._short_names_at = settings.short_names_at
        operators = Path("/etc/containers/policy.json")
        rules = json.loads(operators.read_text()) if operators.exists() else None
        files = {
            "policy.json": json.dumps(signature_policy(settings, rules)),
            "registries.conf": registries_conf(settings),
            "apt.conf": APT_CONF.decode(),
        }
        if settings.registry_authfile is not None:
            files["auth.json"] = settings.registry_authfile.read_text()
        self._has_passwords = "auth.json" in files
        authorities = os.environ.get(_AUTHORITIES)
        if authorities:
            files["authorities.pem"] = Path(authorities).read_text()
        self._has_authorities = "authorities.pem" in files
        for name, text in files.items():
            place = directory / name
            place.write_text(text)
            place.chmod(0o600)
            self._hand_over(place)
        # The machine's own would send it to a place for signatures that it may not enter.
        signatures = directory / "registries.d" / "default.yaml"
        signatures.parent.mkdir(mode=0o700)
        signatures.write_text(f"default-docker: {{lookaside: 'file://{build_child.PLACE}/signatures'}}\n")
        own = directory / ".config"
        if (Path.home() / _CERTIFICATES).is_dir():
            shutil.copytree(Path.home() / _CERTIFICATES, directory / _CERTIFICATES)
            self._hand_over(own)
        # Buildah 1.28 cannot be told to read no drop-ins of the machine, and takes those of its home for the last word.
        drop_ins = own / "containers" / "registries.conf.d"
        drop_ins.mkdir(parents=True)
        (drop_ins / "callsheet.conf").write_text(registries_conf(settings))
        for place in (signatures, signatures.parent, directory, own, *own.rglob("*")):
            self._hand_over(place)

    async def build(self, dockerfile: Dockerfile) -> Path:
        """Returns a directory in the layout of the OCI with the image; it is the caller's.

        Raises:
            ImageBuildError: The Dockerfile does not build, or not in time.
            ImageError: An image that it begins with cannot be had.
            OSError: buildah cannot be started, or the disk refuses.
        """
        name = f"localhost/built:{dockerfile.key}"
        layout = self._directory / f"layout-{dockerfile.key}"
        written = self._directory / f"dockerfile-{dockerfile.key}"
        words = ["--tag", name, *await anyio.to_thread.run_sync(self._rewrite, dockerfile, written)]
        for argument, value in sorted(dockerfile.arguments.items()):
            words += ["--build-arg", f"{argument}={value}"]
        if self._has_passwords:
            words += ["--authfile", f"{build_child.PLACE}/auth.json"]
        usual = ["bud", "--isolation", "chroot", "--layers=false", "--format", "docker", *self._policy()]
        usual += ["--volume", f"{build_child.PLACE}/apt.conf:{APT_CONFIG}:ro"]
        try:
            await self._ask([*usual, *words, "-"], dockerfile.timeout_s, dockerfile.context)
            shown = f"oci:{build_child.PLACE}/{layout.name}:image"
            await self._ask(["push", "--quiet", "--disable-compression", *self._policy(), name, shown], _SHORT_S)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_SHORT_S):
                await self._run(["rmi", "--force", name])
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_directory, written)
        return layout

    def _rewrite(self, dockerfile: Dockerfile, place: Path) -> list[str]:
        """Blocks: writes the Dockerfile as buildah takes it, and what its heredocs copy; returns the options for it.

        Raises:
            ImageBuildError: There is none in its archive, or it cannot be rewritten.
        """
        try:
            with tarfile.open(fileobj=io.BytesIO(dockerfile.context)) as archive:
                found = {posixpath.normpath(member.name).lstrip("/"): member for member in archive}
                content = archive.extractfile(found[dockerfile.path])
                text = content.read().decode(errors="surrogateescape") if content is not None else ""
        except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError) as error:
            raise ImageBuildError(
                f"the Dockerfile does not build: {dockerfile.path} in its archive: {error}"
            ) from error
        text, files = rewrite(text, f"APT_CONFIG={APT_CONFIG}", self._short_names_at, dockerfile.arguments)
        remove_directory(place)
        for name, written in {"Dockerfile": text, **files}.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(written.encode(errors="surrogateescape"))
        for path in (place, *place.rglob("*")):
            self._hand_over(path)
        shown = f"{build_child.PLACE}/{place.name}"
        return ["--file", f"{shown}/Dockerfile", "--build-context", f"{HEREDOCS}={shown}"]

    async def forget(self) -> None:
        """Removes all images from the storage, and what builds left that were stopped; nothing may be building."""
        await self._run(["rm", "--all"])
        await self._run(["rmi", "--all", "--force"])

    def _hand_over(self, path: Path) -> None:
        if self._as_root:
            os.chown(path, build_child.FIRST_UID, build_child.FIRST_UID)

    def _policy(self) -> list[str]:
        return ["--signature-policy", f"{build_child.PLACE}/policy.json"]

    async def _ask(self, words: Sequence[str], seconds: float, stdin: bytes = b"") -> None:
        with anyio.move_on_after(seconds) as waiting:
            code, said = await self._run(words, stdin)
        if waiting.cancelled_caught:
            raise ImageBuildError(f"the build of an image took more than {seconds:g} s")
        if code:
            raise what_failed(said)

    async def _run(self, words: Sequence[str], stdin: bytes = b"") -> tuple[int, str]:
        """Runs a command to its end; returns its exit code and the end of what it said."""
        place = build_child.PLACE
        storage = ["--root", f"{place}/storage", "--runroot", f"{place}/run", "--storage-driver", "vfs"]
        if not self._as_root:
            storage += ["--storage-opt", "vfs.ignore_chown_errors=true"]
        registries = ["--registries-conf", f"{place}/registries.conf", "--registries-conf-dir", f"{place}/registries.d"]
        registries += ["--short-name-alias-conf", f"{place}/aliases.conf"]
        command = [str(self._program), *registries, *storage, *words]
        helper = [sys.executable, "-m", build_child.__name__, str(self._directory), *command]
        process = await anyio.open_process(
            helper, stderr=-2, start_new_session=True, env=self._environment(), cwd=self._directory
        )
        said = bytearray()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_feed, process, stdin)
                assert process.stdout is not None
                async for part in process.stdout:
                    said += part
                    del said[: -2 * _SHOWN]
            return await process.wait(), said.decode(errors="replace")
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.aclose()

    def _environment(self) -> dict[str, str]:
        """Nothing of the manager's own, which may have secrets, but its proxies: steps of a build can read this."""
        kept = {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name)}
        place = build_child.PLACE
        if self._has_authorities:
            kept[_AUTHORITIES] = f"{place}/authorities.pem"
        return {
            **kept,
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "HOME": place,
            "TMPDIR": place,
            "XDG_RUNTIME_DIR": place,
            "USER": "root",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            # Its user namespace is there already.
            "_CONTAINERS_USERNS_CONFIGURED": "done",
        }


async def _feed(process: anyio.abc.Process, content: bytes) -> None:
    assert process.stdin is not None
    try:
        await process.stdin.send(content)
    except anyio.BrokenResourceError:
        # It ended without reading all: its exit code says why.
        return
    finally:
        await process.stdin.aclose()


def what_failed(said: str) -> ImageError:
    """Returns what it means that a build ended with these words: pure."""
    lines = [line for line in said.splitlines() if "level=warning" not in line]
    shown = "\n".join(lines)[-_SHOWN:].strip()
    last = lines[-1] if lines else ""
    if any(words in last for words in _PULLING):
        return ImageError(f"an image that a Dockerfile begins with cannot be had: {last[-_SHOWN:]}")
    return ImageBuildError(f"the Dockerfile does not build: {shown}")
