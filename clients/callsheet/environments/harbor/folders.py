"""Reads task folders of both formats."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from callsheet.environments.harbor.compose import check_compose, parse_yaml
from callsheet.environments.harbor.task import HarborTask, HarborTaskError, Section, TaskFormat

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_ROOTS: Final = frozenset({None, "", "root", "0", 0})
# Terminal-Bench names no sizes.
_USUAL_MEMORY_MIB: Final = 2048


def find_tasks(path: Path) -> list[Path]:
    """Returns the task folders that a path names: itself, or those in it, by name.

    Raises:
        HarborTaskError: There are none.
    """
    if not path.is_dir():
        raise HarborTaskError(f"path: {str(path)!r}: must be a task folder, or a folder of task folders")
    found = (
        [path] if _format_of(path) else sorted(each for each in path.iterdir() if each.is_dir() and _format_of(each))
    )
    if not found:
        raise HarborTaskError(f"path: {str(path)!r}: no folder in it has a task.toml or a task.yaml")
    return found


def read_task(folder: Path, variables: Mapping[str, str] | None = None) -> HarborTask:
    """Returns the task of a folder.

    Args:
        folder: The folder.
        variables: What "${NAME}" in its tables of variables means; None takes this process's environment.

    Raises:
        HarborTaskError: It breaks a rule, or needs what sandboxes do not have.
        OSError: A file cannot be read.
    """
    given = os.environ if variables is None else variables
    task_format = _format_of(folder)
    if task_format is None:
        raise HarborTaskError(f"task {folder.name!r}: has neither a task.toml nor a task.yaml")
    task = _read_harbor(folder, given) if task_format is TaskFormat.HARBOR else _read_terminal_bench(folder)
    for needed in (task.folder / "tests", *([task.context / "Dockerfile"] if not task.image else [])):
        if not needed.exists():
            raise HarborTaskError(f"task {task.name!r}: has no {needed.relative_to(folder)}")
    return task


def _format_of(folder: Path) -> TaskFormat | None:
    if (folder / "task.toml").is_file():
        return TaskFormat.HARBOR
    return TaskFormat.TERMINAL_BENCH if (folder / "task.yaml").is_file() else None


def _read_harbor(folder: Path, variables: Mapping[str, str]) -> HarborTask:
    try:
        parsed = tomllib.loads((folder / "task.toml").read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HarborTaskError(f"task {folder.name!r}: task.toml: {error}") from error
    if (folder / "steps").is_dir():
        raise HarborTaskError(f"task {folder.name!r}: steps: tasks of several steps are not run")
    top = Section(folder.name, "", parsed)
    environment, agent, verifier = (top.section(name) for name in ("environment", "agent", "verifier"))
    _check_harbor(environment, agent, verifier)
    for place in (folder / "environment", folder / "tests"):
        check_compose(folder.name, place)
    internet, hosts = _network(environment)
    return HarborTask(
        name=folder.name,
        folder=folder,
        format=TaskFormat.HARBOR,
        instruction=_text_of(folder, "instruction.md"),
        image=environment.text("docker_image"),
        context=folder / "environment",
        cpus=environment.count("cpus", 1),
        memory_mib=environment.size_mib("memory_mb", "memory", 2048),
        storage_mib=environment.size_mib("storage_mb", "storage", 10240),
        build_timeout_s=environment.seconds("build_timeout_sec", 600.0),
        agent_timeout_s=agent.seconds("timeout_sec", 3600.0),
        verifier_timeout_s=verifier.seconds("timeout_sec", 600.0),
        internet=internet,
        allowed_hosts=hosts,
        environment=_variables(environment, variables),
        verifier_environment=_variables(verifier, variables),
        solution_environment=_variables(top.section("solution"), variables),
    )


def _check_harbor(environment: Section, agent: Section, verifier: Section) -> None:
    environment.refuse("gpus", "GPUs")
    environment.refuse("tpu", "TPUs")
    environment.refuse("mcp_servers", "MCP servers beside the sandbox")
    environment.refuse("healthcheck", "a health check of services that begin with the container")
    environment.refuse("privileged", "a privileged container")
    if environment.text("os") not in {"", "linux"}:
        raise environment.wrong("os", environment.text("os"), "must be linux")
    for section in (agent, verifier):
        if section.table.get("user") not in _ROOTS:
            raise section.wrong("user", section.table["user"], "it needs a user other than root, who is all there is")
        for key in ("network_mode", "allowed_hosts"):
            section.refuse(key, "another network than the rest of its episode")
    if verifier.text("environment_mode") not in {"", "shared"} or "environment" in verifier.table:
        raise verifier.wrong("environment_mode", "separate", "it needs a sandbox of its own for tests")
    verifier.refuse("collect", "hooks before the tests")


def _network(environment: Section) -> tuple[bool, tuple[str, ...]]:
    hosts = environment.table.get("allowed_hosts") or []
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise environment.wrong("allowed_hosts", hosts, "must be a list of names")
    mode = environment.text("network_mode") or ("allowlist" if hosts else "")
    if mode not in {"", "public", "no-network", "allowlist"}:
        raise environment.wrong("network_mode", mode, "must be public, no-network or allowlist")
    internet = mode == "public" or (not mode and environment.table.get("allow_internet", True) is True)
    return internet, tuple(hosts) if mode == "allowlist" else ()


def _read_terminal_bench(folder: Path) -> HarborTask:
    top = Section(folder.name, "", parse_yaml(folder.name, folder / "task.yaml"))
    if top.text("parser_name") not in {"", "pytest"}:
        raise top.wrong("parser_name", top.text("parser_name"), "must be pytest")
    check_compose(folder.name, folder)
    if not (folder / "run-tests.sh").is_file():
        raise HarborTaskError(f"task {folder.name!r}: has no run-tests.sh")
    instruction = top.text("instruction")
    if not instruction.strip():
        raise top.wrong("instruction", instruction, "must be a text")
    return HarborTask(
        name=folder.name,
        folder=folder,
        format=TaskFormat.TERMINAL_BENCH,
        instruction=instruction,
        context=folder,
        memory_mib=_USUAL_MEMORY_MIB,
        agent_timeout_s=top.seconds("max_agent_timeout_sec", 360.0),
        verifier_timeout_s=top.seconds("max_test_timeout_sec", 60.0),
    )


def _variables(section: Section, given: Mapping[str, str]) -> dict[str, str]:
    table = section.table.get("env") or {}
    if not isinstance(table, Mapping):
        raise section.wrong("env", table, "must be a table of variables")
    return {str(name): _filled(section, str(name), str(value), given) for name, value in table.items()}


def _filled(section: Section, name: str, value: str, given: Mapping[str, str]) -> str:
    def replaced(found: re.Match[str]) -> str:
        text = given.get(found[1], found[2])
        if text is None:
            raise section.wrong(f"env.{name}", value, f"the variable {found[1]} must be set here")
        return text

    return _VARIABLE.sub(replaced, value)


def _text_of(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text()
    except FileNotFoundError as error:
        raise HarborTaskError(f"task {folder.name!r}: has no {name}") from error
