"""What a task's compose file asks for: one service that waits in its container, and nothing that sandboxes lack."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from callsheet.environments.harbor.task import HarborTaskError, Section

_NAMES: Final = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_NEEDS: Final = {
    "privileged": "a privileged container",
    "cap_add": "further capabilities",
    "devices": "devices of the machine",
    "gpus": "GPUs",
    "runtime": "another container runtime",
    "pid": "processes of others",
    "ipc": "memory shared with others",
    "entrypoint": "a program that begins with the container",
}
_WAITING: Final = ("sleep", "tail -f /dev/null")


def check_compose(task: str, directory: Path) -> None:
    """Looks whether a directory has a compose file that asks for what sandboxes do not have.

    Raises:
        HarborTaskError: It does, or it is none.
    """
    for name in _NAMES:
        if (directory / name).is_file():
            check_services(task, name, parse_yaml(task, directory / name))


def check_services(task: str, name: str, parsed: Any) -> None:
    """Checks the content of a compose file; raises HarborTaskError. Pure."""
    services = Section(task, name, parsed or {}).section("services")
    if len(services.table) > 1:
        raise services.wrong(
            "", ", ".join(map(str, services.table)), "it needs several containers: one is all there is"
        )
    for service in services.table:
        _check_service(services.section(str(service)))


def _check_service(service: Section) -> None:
    for key, need in _NEEDS.items():
        service.refuse(key, need)
    if service.text("network_mode") == "host":
        raise service.wrong("network_mode", "host", "it needs the machine's network")
    command = service.table.get("command")
    words = " ".join(map(str, command)) if isinstance(command, list) else str(command or "")
    if words and not any(wait in words for wait in _WAITING):
        raise service.wrong("command", words, "it needs a program that begins with the container")
    deploy = service.section("deploy").section("resources").section("reservations")
    deploy.refuse("devices", "devices of the machine")
    build = service.table.get("build")
    if isinstance(build, Mapping):
        service.section("build").refuse("target", "one stage of its Dockerfile")
        service.section("build").refuse("args", "arguments of its Dockerfile")


def parse_yaml(task: str, file: Path) -> Any:
    """Returns what a YAML file holds.

    Raises:
        HarborTaskError: PyYAML is missing, or it is no YAML.
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise HarborTaskError(f"task {task!r}: {file.name}: {error}; install callsheet[harbor]") from error
    try:
        return yaml.safe_load(file.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise HarborTaskError(f"task {task!r}: {file.name}: {error}") from error
