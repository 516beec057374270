"""Talks to a Docker engine. Every call blocks for milliseconds to seconds: call it in a worker thread."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import docker.errors
import docker.utils
import requests.exceptions
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.files.root_filesystem import HOST_NAME, WORK
from callsheet.managers.sandbox.isolation.docker_engine.container import ContainerPlan
from callsheet.managers.sandbox.isolation.kernel_bounds import LOCKED_BYTES
from callsheet.managers.sandbox.network.destinations import LOOPBACK
from docker.models.containers import Container
from docker.models.images import Image

_TIMEOUT_S = 60
_END_TIMEOUT_S = 10
_KILLED = 128 + signal.SIGKILL
# What a container's first process said before it ended, at most.
_MOST_ERROR_BYTES = 4096


class DockerEngine:
    """One engine, found as the docker program finds it: DOCKER_HOST, DOCKER_TLS_VERIFY, DOCKER_CERT_PATH."""

    def __init__(self) -> None:
        """Connects.

        Raises:
            SandboxCreateError: No engine answers.
        """
        with _told("the Docker engine does not answer"):
            _require_socket()
            self._client = docker.from_env(timeout=_TIMEOUT_S)
            self._client.ping()

    def describe(self) -> str:
        """Returns its name and version."""
        with _told("the Docker engine's version"):
            return f"Docker Engine {self._client.version()['Version']}"

    def image_environment(self, image: str) -> Mapping[str, str]:
        """Returns the variables that an image sets.

        Raises:
            SandboxCreateError: The image is not on this machine; nothing is downloaded.
        """
        words = self._image(image).attrs["Config"].get("Env") or []
        return dict(word.partition("=")[::2] for word in words)

    def image_id(self, image: str) -> str:
        """Returns the digest by which the engine knows an image.

        Raises:
            SandboxCreateError: The image is not on this machine; nothing is downloaded.
        """
        return str(self._image(image).id)

    def _image(self, name: str) -> Image:
        try:
            with _told(f"image {name!r}"):
                return self._client.images.get(name)
        except docker.errors.ImageNotFound as error:
            raise SandboxCreateError(f"image: {name!r}: is not on this machine; `docker pull` it first") from error

    def image_names(self) -> list[str]:
        """Returns the names, with their tags, of the images on this machine."""
        with _told("the engine's images"):
            return sorted({tag for image in self._client.images.list() for tag in image.tags})

    def start(self, plan: ContainerPlan) -> Container:
        """Makes and starts a container.

        Raises:
            SandboxCreateError: The engine refuses; nothing is left.
        """
        with _told(f"container {plan.name}"):
            container = self._client.containers.create(plan.image, **_options(plan))
            try:
                container.start()
                container.reload()
            except BaseException:
                self.remove(container)
                raise
        return container

    def first_pid(self, container: Container) -> int:
        """Returns the first process as the engine sees it, as of the start; 0 if it has ended."""
        return int(container.attrs["State"]["Pid"])

    def is_running(self, container: Container) -> bool:
        """Returns whether the container's first process runs, as of now."""
        with _told(f"container {container.name}"):
            try:
                container.reload()
            except docker.errors.NotFound:
                return False
        return bool(container.status == "running")

    def ran_out_of_memory(self, container: Container) -> bool:
        """Waits for the end of a container; returns whether it was killed as its memory was used up.

        A kill of its first process is taken for that if anything in it was killed for the memory before.

        Raises:
            SandboxCreateError: It does not end, or the engine cannot tell.
        """
        with _told(f"the end of container {container.name}"):
            try:
                container.wait(timeout=_END_TIMEOUT_S)
                container.reload()
            except docker.errors.NotFound:
                return False
        state = container.attrs["State"]
        return bool(state["OOMKilled"]) and state["ExitCode"] == _KILLED

    def set_cores(self, container: Container, cores: Sequence[int]) -> None:
        """Puts a running container on cores, by the engine: slower than by its group.

        Raises:
            OSError: The engine refuses.
        """
        try:
            container.update(cpuset_cpus=",".join(map(str, sorted(cores))))
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            raise OSError(errno.EINVAL, f"cores {sorted(cores)}: {error}") from error

    def last_words(self, container: Container) -> str:
        """Returns what the first process wrote to its standard error; empty if that cannot be told."""
        with contextlib.suppress(docker.errors.DockerException, requests.exceptions.RequestException):
            said: bytes = container.logs(stdout=False, tail=20)
            return said[-_MOST_ERROR_BYTES:].decode(errors="replace").strip()
        return ""

    def remove(self, container: Container) -> None:
        """Kills and removes a container; one that is gone is fine.

        Raises:
            SandboxCreateError: The engine cannot.
        """
        with _told(f"removing container {container.name}"), contextlib.suppress(docker.errors.NotFound):
            try:
                container.remove(force=True, v=True)
            except docker.errors.APIError as error:
                # The engine is removing it already.
                if error.status_code != 409:
                    raise

    def remove_labelled(self, labels: Mapping[str, str]) -> int:
        """Removes all containers with these labels, running or not; returns how many there were."""
        found = self._labelled(labels)
        for container in found:
            self.remove(container)
        return len(found)

    def _labelled(self, labels: Mapping[str, str]) -> list[Container]:
        wanted = [f"{name}={value}" for name, value in labels.items()]
        with _told("listing containers"):
            return self._client.containers.list(all=True, filters={"label": wanted}, ignore_removed=True)

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()


def _require_socket() -> None:
    """Raises DockerException without a socket to connect to, which the library would leave open in its failure."""
    scheme, _, path = str(docker.utils.parse_host(os.environ.get("DOCKER_HOST"))).partition("://")
    if scheme == "http+unix" and not Path(path).is_socket():
        raise docker.errors.DockerException(f"there is no socket {path}; DOCKER_HOST may name another")


def _options(plan: ContainerPlan) -> dict[str, Any]:
    """The arguments of containers.create, beside the image."""
    return {
        # Over the image's own entry point, which would come first.
        "entrypoint": list(plan.command),
        "command": [],
        "name": plan.name,
        "hostname": HOST_NAME,
        # The engine lays localhost itself, and this name only where the container has an address.
        "extra_hosts": {HOST_NAME: LOOPBACK},
        "labels": dict(plan.labels),
        "user": f"{plan.uid}:{plan.uid}",
        "working_dir": WORK,
        "read_only": True,
        "network_mode": "none",
        "ipc_mode": "private",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "pids_limit": plan.processes,
        "ulimits": [{"name": "memlock", "soft": LOCKED_BYTES, "hard": LOCKED_BYTES}],
        "mem_limit": plan.memory_bytes,
        "memswap_limit": plan.memory_bytes,
        "cpuset_cpus": ",".join(map(str, sorted(plan.cores))),
        "tmpfs": dict(plan.memory_mounts),
        "volumes": {outside: {"bind": inside, "mode": "ro"} for outside, inside in plan.read_only_mounts.items()},
        "log_config": {"type": "json-file", "config": {"max-size": "64k", "max-file": "1"}},
    }


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Turns the engine's errors into the manager's. A missing image or container is left to the caller."""
    try:
        yield
    except docker.errors.NotFound:
        raise
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise SandboxCreateError(f"{what}: {error}") from error
