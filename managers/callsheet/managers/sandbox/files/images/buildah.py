"""Builds images by buildah, a child process for each of its commands."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import structlog
from callsheet.managers.sandbox.files.directories import remove_directory
from callsheet.managers.sandbox.files.images import build_child
from callsheet.managers.sandbox.files.images.dockerfiles import HEREDOCS, rewrite
from callsheet.managers.sandbox.files.images.errors import ImageBuildError, ImageError
from callsheet.managers.sandbox.files.images.preparation import digest_of_changes
from callsheet.managers.sandbox.files.images.references import is_loopback
from callsheet.managers.sandbox.files.images.shared_work import SharedWork
from callsheet.managers.sandbox.files.images.unpacking import read_archived
from callsheet.managers.sandbox.files.root_filesystem import APT_CONF, APT_CONFIG
from callsheet.managers.sandbox.files.system_shown import library_path, system_options
from callsheet.managers.sandbox.network.destinations import LOOPBACK, Destination
from callsheet.managers.sandbox.network.doors import Door, proxy_environment
from callsheet.managers.sandbox.network.proxy import serve_connection
from callsheet.managers.sandbox.registry_settings import ANY_REGISTRY, RegistrySettings

HOW_TO_INSTALL_BUILDAH = "install the system package buildah, which builds images of Dockerfiles"
_SHOWN = 3000
_PULLING = ("initializing source", "pinging container registry", "reading manifest", "reading blob", "writing blob")
# What stands in the place of an argument, in what is told of the build.
_ARGUMENT_STEP = re.compile(r"(STEP \d+/\d+: ARG \w+)=.*")
_PASSED = re.compile(r"(?:https?|ftp|all|no)_proxy", re.IGNORECASE)
# The manager's user's authorities of registries, in its environment and below its home: buildah has another home.
_AUTHORITIES = "SSL_CERT_FILE"
_CERTIFICATES = Path(".config/containers/certs.d")
_ANYTHING = [{"type": "insecureAcceptAnything"}]
_BUILT = "localhost/built"
# Where buildah sees what is written for it, and its home is.
_INSIDE = "/run/callsheet"
_PUBLIC = ("policy.json", "registries.conf", "registries.d", "apt.conf", "authorities.pem")
_POLICY = ("--signature-policy", f"{_INSIDE}/policy.json")
_SYSTEM_FILES = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/mime.types"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates"),
)
# What package managers need. None leads out of a step's root, or to processes and devices of the machine.
_CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL"),
    *("CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID"),
)
# Those of one build are counted in its user namespace.
_MOST_PROCESSES = 4096

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """Dockerfile and context from which an image is built.

    Attributes:
        key: A name that is the same for the same content, Dockerfile and arguments.
        context: A tar archive.
        path: Path of the Dockerfile in the archive.
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
    """Builds in one directory: each image in a storage of its own, on images that no build can write to.

    DIRECTORY/settings/     what buildah reads, passwords of registries among it
    DIRECTORY/bases/NAME/   the storage of an image that others are built on, as its registry gave it
    DIRECTORY/builds/KEY/   a build's own: its storage, its caches, its Dockerfile, and what it made
    """

    def __init__(
        self,
        program: Path,
        bwrap: Path,
        directory: Path,
        settings: RegistrySettings,
        network: Sequence[Destination] | None,
    ) -> None:
        """Blocks: writes what buildah reads.

        Args:
            program: buildah.
            bwrap: Shows it its own files, and little else of the machine.
            directory: Empty; belongs to this alone.
            settings: The registries that images may be built on.
            network: What builds can reach, by a proxy; None for what the machine can.
        """
        self._program = program
        self._bwrap = bwrap
        self._directory = directory
        self._network = network
        self._as_root = os.geteuid() == 0
        self._short_names_at, self._pull_s = settings.short_names_at, settings.pull_timeout_s
        self._pulling = SharedWork((ImageError,))
        # What each base looked like when it had come.
        self._looks: dict[str, str] = {}
        for name in ("settings", "bases", "builds"):
            (directory / name).mkdir()
        operators = Path("/etc/containers/policy.json")
        rules = json.loads(operators.read_text()) if operators.exists() else None
        files = {
            "policy.json": json.dumps(signature_policy(settings, rules)),
            "registries.conf": registries_conf(settings),
            "apt.conf": APT_CONF.decode(),
            # The machine's own would send it to a place for signatures that it may not enter.
            "registries.d/default.yaml": f"default-docker: {{lookaside: 'file://{_INSIDE}/signatures'}}\n",
        }
        if settings.registry_authfile is not None:
            files["auth.json"] = settings.registry_authfile.read_text()
        self._has_passwords = "auth.json" in files
        authorities = os.environ.get(_AUTHORITIES)
        if authorities:
            files["authorities.pem"] = Path(authorities).read_text()
        self._has_authorities = "authorities.pem" in files
        if (Path.home() / _CERTIFICATES).is_dir():
            shutil.copytree(Path.home() / _CERTIFICATES, directory / "settings" / _CERTIFICATES)
        for name, text in files.items():
            place = directory / "settings" / name
            place.parent.mkdir(mode=0o700, exist_ok=True)
            place.write_text(text)
            place.chmod(0o600)
        self._hand_over(directory)

    async def build(self, dockerfile: Dockerfile, stop: anyio.Event) -> Path:
        """Returns a directory in the layout of the OCI with the image; `forget_build` removes it.

        Raises:
            ImageBuildError: The Dockerfile does not build.
            TimeoutError: It does not build in the time that this caller gives it. Another one may give it more.
            ImageError: An image that it begins with cannot be had.
            OSError: buildah cannot be started, or the disk refuses.
            StoppedError: `stop` was set while another caller had such an image pulled.
        """
        own = self._directory / "builds" / dockerfile.key
        with anyio.fail_after(dockerfile.timeout_s):
            await anyio.to_thread.run_sync(self._make, own)
            try:
                text = await read_archived(dockerfile.context, dockerfile.path, own / "tmp", self._bwrap)
            except ImageError as error:
                raise ImageBuildError(f"the Dockerfile does not build: {error}") from error
            images = await anyio.to_thread.run_sync(self._rewrite, text, dockerfile, own)
            missing: ImageError | None = None
            for image in images:
                try:
                    await self._base(image, stop)
                except ImageError as error:
                    # A stage that nothing needs may begin with it.
                    missing = error
            bases = [name for image in images if (name := _base_name(image)) in self._looks]
            try:
                await self._build(dockerfile, own, bases)
            except ImageBuildError as error:
                raise missing or error from None
        return own / "layout"

    async def _build(self, dockerfile: Dockerfile, own: Path, bases: Sequence[str]) -> None:
        usual = ["bud", "--isolation", "chroot", "--layers=false", "--format", "docker", *_POLICY, "--pull=never"]
        usual += ["--cap-drop", "ALL", *(word for name in _CAPABILITIES for word in ("--cap-add", name))]
        usual += ["--ulimit", f"nproc={_MOST_PROCESSES}:{_MOST_PROCESSES}"]
        usual += ["--volume", f"{_INSIDE}/apt.conf:{APT_CONFIG}:ro", "--tag", _BUILT]
        usual += ["--file", f"{build_child.PLACE}/dockerfile/Dockerfile"]
        usual += ["--build-context", f"{HEREDOCS}={build_child.PLACE}/dockerfile", "-"]
        await self._ask(own, usual, bases, dockerfile.context)
        shown = f"oci:{build_child.PLACE}/layout:image"
        await self._ask(own, ["push", "--quiet", "--disable-compression", *_POLICY, _BUILT, shown], bases)

    async def forget_build(self, dockerfile: Dockerfile) -> None:
        """Removes a build with all that it wrote."""
        await anyio.to_thread.run_sync(remove_directory, self._directory / "builds" / dockerfile.key)

    async def forget_bases(self) -> None:
        """Removes all images that others are built on; nothing may be building."""
        for name in list(self._looks):
            del self._looks[name]
            await anyio.to_thread.run_sync(remove_directory, self._directory / "bases" / name)

    async def _base(self, image: str, stop: anyio.Event) -> None:
        """Has an image ready, pulled anew unless all of it looks as it did when it had come.

        What comes is checked against its digests as it is pulled. No build can write to it from then on. Nobody can set
        the time at which a file was changed last, so the look at it tells of every write all the same.
        """
        name = _base_name(image)
        if name in self._looks:
            look = await anyio.to_thread.run_sync(digest_of_changes, self._directory / "bases" / name)
            if look == self._looks.get(name):
                return
            _log.warning("build_base_changed", image=image)
            self._looks.pop(name, None)
        while name not in self._looks:
            await self._pulling.do(name, partial(self._pull, image, name), stop)

    async def _pull(self, image: str, name: str) -> None:
        place = self._directory / "bases" / name
        await anyio.to_thread.run_sync(self._make, place)
        words = ["pull", "--quiet", *_POLICY, *(["--authfile", f"{_INSIDE}/auth.json"] if self._has_passwords else [])]
        try:
            with anyio.move_on_after(self._pull_s) as waiting:
                await self._ask(place, [*words, f"docker://{image}"])
            if waiting.cancelled_caught:
                raise ImageError(f"image {image!r}: took more than {self._pull_s:g} s to pull")
            self._looks[name] = await anyio.to_thread.run_sync(digest_of_changes, place)
        finally:
            if name not in self._looks:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(remove_directory, place)

    def _make(self, place: Path) -> None:
        """Blocks: makes an empty directory that buildah works in."""
        remove_directory(place)
        (place / "tmp").mkdir(parents=True)
        self._hand_over(place)

    def _rewrite(self, text: str, dockerfile: Dockerfile, own: Path) -> tuple[str, ...]:
        """Blocks: writes the Dockerfile as buildah takes it, and what its heredocs copy; returns the images it names.

        Raises:
            ImageBuildError: It cannot be rewritten.
        """
        made = rewrite(text, f"APT_CONFIG={APT_CONFIG}", self._short_names_at, dockerfile.arguments)
        for name, written in {"Dockerfile": made.text, **made.files}.items():
            place = own / "dockerfile" / name
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.write_bytes(written.encode(errors="surrogateescape"))
        self._hand_over(own)
        return made.images

    def _hand_over(self, directory: Path) -> None:
        for path in (directory, *directory.rglob("*")) if self._as_root else ():
            os.chown(path, build_child.FIRST_UID, build_child.FIRST_UID)

    async def _ask(self, own: Path, words: Sequence[str], bases: Sequence[str] = (), stdin: bytes = b"") -> None:
        with ExitStack() as opened:
            network, door = build_child.MACHINE, None
            if own.parent.name == "builds" and self._network is not None:
                ours, theirs = (opened.enter_context(end) for end in socket.socketpair())
                network, door = str(theirs.fileno()), _Door(own.name[:12], tuple(self._network), ours, theirs)
            code, said = await self._run(self._command(own, network, words, bases), stdin, door)
        if code:
            raise what_failed(said)

    def _command(self, own: Path, network: str, words: Sequence[str], bases: Sequence[str]) -> list[str]:
        """Returns buildah's command, by which it sees its own directory alone, and settings and bases read-only."""
        place, kind = build_child.PLACE, own.parent.name
        shown = [str(self._bwrap), "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        shown += [*system_options(), *(word for file in _SYSTEM_FILES for word in ("--ro-bind-try", file, file))]
        shown += ["--proc", "/proc", "--dev", "/dev", "--dir", "/sys"]
        shown += [word for name in ("/tmp", "/run", "/var/tmp") for word in ("--tmpfs", name)]
        # Passwords and keys are for pulls, which run nothing of anybody's.
        for name in ("",) if kind == "bases" else _PUBLIC:
            shown += ["--ro-bind-try", f"{place}/settings/{name}", f"{_INSIDE}/{name}"]
        for name in bases:
            shown += ["--ro-bind", f"{place}/bases/{name}", f"/run/bases/{name}"]
        shown += ["--bind", f"{place}/{kind}/{own.name}", place, "--chdir", place, "--", str(self._program)]
        storage = ["--root", f"{place}/storage", "--runroot", f"{place}/run", "--storage-driver", "vfs"]
        storage += [word for name in bases for word in ("--storage-opt", f"vfs.imagestore=/run/bases/{name}/storage")]
        if not self._as_root:
            storage += ["--storage-opt", "vfs.ignore_chown_errors=true"]
        registries = ["--registries-conf", f"{_INSIDE}/registries.conf", "--registries-conf-dir"]
        registries += [f"{_INSIDE}/registries.d", "--short-name-alias-conf", f"{place}/aliases.conf"]
        helper = [sys.executable, "-m", build_child.__name__, str(self._directory), network]
        return [*helper, *shown, *registries, *storage, *words]

    async def _run(self, command: Sequence[str], stdin: bytes, door: _Door | None) -> tuple[int, str]:
        """Runs a command to its end; returns its exit code and the end of what it said."""
        process = await anyio.open_process(
            command,
            stderr=-2,
            start_new_session=True,
            env=self._environment(door),
            cwd=self._directory,
            pass_fds=[door.theirs.fileno()] if door is not None else [],
        )
        said = bytearray()
        try:
            async with anyio.create_task_group() as tasks:
                if door is not None:
                    door.theirs.close()
                    tasks.start_soon(door.serve)
                tasks.start_soon(_feed, process, stdin)
                assert process.stdout is not None
                async for part in process.stdout:
                    said += part
                    del said[: -2 * _SHOWN]
                code = await process.wait()
                tasks.cancel_scope.cancel()
            return code, said.decode(errors="replace")
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.aclose()

    def _environment(self, door: _Door | None) -> dict[str, str]:
        """Nothing of the manager's own, which may have secrets, but its proxies: steps of a build can read this."""
        kept = {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name)}
        if door is not None:
            kept = dict(proxy_environment(door.network))
        place = build_child.PLACE
        if self._has_authorities:
            kept[_AUTHORITIES] = f"{_INSIDE}/authorities.pem"
        return {
            **kept,
            **library_path(self._bwrap),
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "HOME": _INSIDE,
            "TMPDIR": f"{place}/tmp",
            "XDG_RUNTIME_DIR": place,
            "USER": "root",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            # Its user namespace is there already.
            "_CONTAINERS_USERNS_CONFIGURED": "done",
        }


@dataclass(frozen=True, slots=True)
class _Door:
    """The way out of a build's own network; see `proxy.Connecting`."""

    sandbox_id: str
    network: tuple[Destination, ...]
    ours: socket.socket
    theirs: socket.socket
    source: str = LOOPBACK

    @property
    def spec(self) -> _Door:
        """Itself."""
        return self

    async def serve(self) -> None:
        """Serves connections until it is cancelled."""
        # No port of this machine's loopback: what listens there knows sandboxes by the addresses they come from.
        allowed = [place for place in self.network if not place.is_loopback]
        await anyio.wait_readable(self.ours)
        _, descriptors, _, _ = socket.recv_fds(self.ours, 1, 1)
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)
            with socket.socket(fileno=descriptor) as listener:
                await Door(listener, partial(serve_connection, allowed=allowed, sandbox=self), self.sandbox_id).serve()


def _base_name(image: str) -> str:
    return hashlib.sha256(image.encode()).hexdigest()


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
    lines = [_ARGUMENT_STEP.sub(r"\1", line) for line in said.splitlines() if "level=warning" not in line]
    shown = "\n".join(lines)[-_SHOWN:].strip()
    last = lines[-1] if lines else ""
    if any(words in last for words in _PULLING):
        return ImageError(f"an image that a Dockerfile begins with cannot be had: {last[-_SHOWN:]}")
    return ImageBuildError(f"the Dockerfile does not build: {shown}")
