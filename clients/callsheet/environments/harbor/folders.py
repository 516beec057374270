"""Reads task folders of both formats, and makes archives of what they have.

The same files are the same bytes in an archive, wherever and whenever they are read.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import re
import stat
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from callsheet.environments.harbor.task import HarborTask, HarborTaskError, Section, TaskFormat

# What a task's compose file asks for: one service that waits in its container, and nothing that sandboxes lack.
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
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")
# What Harbor keeps from its agents as well.
_CANARY: Final = "canary"
_OWN_VARIABLES: Final = "CALLSHEET_"
# What is opened here by its name; what else a directory has is archived as it is, links as links.
_READ: Final = (
    *("task.toml", "task.yaml", "instruction.md", "Dockerfile", "run-tests.sh", "solution.sh", "steps"),
    *("environment", "environment/Dockerfile", "tests", "tests/test.sh", "solution", "solution/solve.sh"),
)
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Terminal-Bench names no sizes.
_USUAL_MEMORY_MIB: Final = 2048


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
        raise HarborTaskError(f"task {task!r}: {file.name}: {error}; needs the extra harbor") from error
    try:
        return yaml.safe_load(file.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise HarborTaskError(f"task {task!r}: {file.name}: {error}") from error


def find_tasks(path: Path) -> list[Path]:
    """Returns the task folders that a path names: itself, or those in it, by name.

    Raises:
        HarborTaskError: There are none.
    """
    if not path.is_dir():
        raise HarborTaskError(f"path: {str(path)!r}: must be a task folder, or a folder of task folders")
    found = [path] if _is_task(path) else sorted(filter(_is_task, path.iterdir()))
    if not found:
        raise HarborTaskError(f"path: {str(path)!r}: no folder in it has a task.toml or a task.yaml")
    return found


def named_variables(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that task folders may take: those that a text names, with commas between them. Pure.

    Raises:
        HarborTaskError: It names one of Callsheet's own, such as that of a token.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name.startswith(_OWN_VARIABLES):
            raise HarborTaskError(f"variables: {name!r}: must be none of {_OWN_VARIABLES}*, which no task may have")
    return {name: environ[name] for name in names if name in environ}


def read_task(folder: Path, variables: Mapping[str, str] = MappingProxyType({})) -> HarborTask:
    """Returns the task of a folder.

    Args:
        folder: The folder.
        variables: What "${NAME}" in its tables of variables means; see `named_variables`.

    Raises:
        HarborTaskError: It breaks a rule, or needs what sandboxes do not have.
    """
    try:
        _check_links(folder)
        return _read(folder, variables)
    except HarborTaskError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        # Recursion and loops of links included. One folder's files are no reason to read no other.
        raise HarborTaskError(f"task {folder.name!r}: {error}") from error


def _read(folder: Path, variables: Mapping[str, str]) -> HarborTask:
    task_format = _format_of(folder)
    if task_format is None:
        raise HarborTaskError(f"task {folder.name!r}: has neither a task.toml nor a task.yaml")
    task = _read_harbor(folder, variables) if task_format is TaskFormat.HARBOR else _read_terminal_bench(folder)
    built = [] if task.image else [task.context / "Dockerfile"]
    for needed in (folder / "tests", task.test_script, *built):
        if not needed.exists():
            raise HarborTaskError(f"task {task.name!r}: has no {needed.relative_to(folder)}")
    odd = [each for place in ("tests", "solution") for each in odd_members(folder / place)]
    odd += [each for dockerfile in built for each in odd_members(dockerfile.parent, built=True)]
    if odd:
        raise HarborTaskError("\n".join(f"task {task.name!r}: {each}" for each in odd))
    return task


def _check_links(folder: Path) -> None:
    """Raises HarborTaskError where a name that is read on this machine is a link to what is not the task's own."""
    own = folder.resolve()
    places = [*_READ, *_NAMES, *(f"{place}/{name}" for place in ("environment", "tests") for name in _NAMES)]
    for name in places:
        found = (folder / name).resolve()
        if not found.is_relative_to(own):
            raise HarborTaskError(f"task {folder.name!r}: {name}: leads to {str(found)!r}, out of the task's folder")


def _is_task(folder: Path) -> bool:
    try:
        return _format_of(folder) is not None
    except PermissionError:
        # It is read later, and told by its name.
        return True


def _format_of(folder: Path) -> TaskFormat | None:
    if (folder / "task.toml").is_file():
        return TaskFormat.HARBOR
    return TaskFormat.TERMINAL_BENCH if (folder / "task.yaml").is_file() else None


def _read_harbor(folder: Path, variables: Mapping[str, str]) -> HarborTask:
    try:
        parsed = tomllib.loads(_text_of(folder, "task.toml"))
    except tomllib.TOMLDecodeError as error:
        raise HarborTaskError(f"task {folder.name!r}: task.toml: {error}") from error
    if parsed.get("steps") or (folder / "steps").is_dir():
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
        instruction=without_canary(_text_of(folder, "instruction.md")),
        keeps_running=_background(top.section("metadata"), "callsheet_background"),
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
        workdir=environment.text("workdir"),
        agent_user=_user(agent),
        verifier_user=_user(verifier),
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
    if environment.text("os").lower() not in {"", "linux"}:
        raise environment.wrong("os", environment.text("os"), "must be linux")
    for section in (agent, verifier):
        for key in ("network_mode", "allowed_hosts"):
            section.refuse(key, "another network than the rest of its episode")
    if verifier.text("environment_mode") not in {"", "shared"} or "environment" in verifier.table:
        raise verifier.wrong("environment_mode", "separate", "it needs a sandbox of its own for tests")
    verifier.refuse("collect", "hooks before the tests")
    users = _user(agent), _user(verifier)
    if all(users) and users[0] != users[1]:
        raise verifier.wrong("user", users[1], f"it needs another user than its agent, {users[0]!r}: a sandbox has one")


def _user(section: Section) -> str:
    value = section.table.get("user")
    return str(value) if type(value) is int else section.text("user")


def _network(environment: Section) -> tuple[bool, tuple[str, ...]]:
    hosts = environment.table.get("allowed_hosts") or []
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise environment.wrong("allowed_hosts", hosts, "must be a list of names")
    mode = environment.text("network_mode") or ("allowlist" if hosts else "")
    if mode not in {"", "public", "no-network", "allowlist"}:
        raise environment.wrong("network_mode", mode, "must be public, no-network or allowlist")
    internet = mode == "public" or (not mode and environment.table.get("allow_internet", True) is True)
    return internet, tuple(hosts) if mode == "allowlist" else ()


def _background(metadata: Section, key: str) -> bool:
    value = metadata.text(key)
    if value not in {"", "kill", "run"}:
        raise metadata.wrong(key, value, "must be kill or run")
    return value == "run"


def _read_terminal_bench(folder: Path) -> HarborTask:
    top = Section(folder.name, "", parse_yaml(folder.name, folder / "task.yaml"))
    if top.text("parser_name") not in {"", "pytest"}:
        raise top.wrong("parser_name", top.text("parser_name"), "must be pytest")
    check_compose(folder.name, folder)
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
            rule = f"the variable {found[1]} must be set here, and named: --task-option variables={found[1]}"
            raise section.wrong(f"env.{name}", value, rule)
        return text

    return _VARIABLE.sub(replaced, value)


def _text_of(folder: Path, name: str) -> str:
    try:
        content = (folder / name).read_bytes()
        text = content.decode("utf-16" if content.startswith(_UTF_16) else "utf-8-sig")
    except FileNotFoundError as error:
        raise HarborTaskError(f"task {folder.name!r}: has no {name}") from error
    except UnicodeDecodeError as error:
        rule = "must be UTF-8, or UTF-16 with its mark"
        raise HarborTaskError(f"task {folder.name!r}: {name}: {rule}: {error}") from error
    if "\0" in text:
        raise HarborTaskError(f"task {folder.name!r}: {name}: holds a NUL, which no text may")
    return text.replace("\r\n", "\n")


def without_canary(text: str) -> str:
    """Returns an instruction without the comments at its begin that mark the data of a benchmark: pure."""
    lines = text.split("\n")
    while lines and _is_canary(lines[0].strip().lower()):
        del lines[0]
    while lines and not lines[0].strip():
        del lines[0]
    return "\n".join(lines)


def _is_canary(line: str) -> bool:
    is_comment = line.startswith("#") or (line.startswith("<!--") and line.endswith("-->"))
    return is_comment and _CANARY in line


def archive_of(directory: Path | None, more: Iterable[Path] = (), *, executable: bool = False) -> bytes:
    """Returns a compressed tar archive of a directory's content. Blocks.

    Sockets and devices are left out, as Docker leaves them out of what it builds of.

    Args:
        directory: The directory; None for further files alone.
        more: Further files, which are put beside its content by their names.
        executable: Whether scripts (*.sh) can be executed, whatever they are on disk.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        own = [(path, str(path.relative_to(directory))) for path in _below(directory)] if directory is not None else []
        for path, name in [*own, *((path, path.name) for path in more)]:
            status = path.lstat()
            if stat.S_ISSOCK(status.st_mode) or stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                continue
            member = archive.gettarinfo(path, name)
            member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "root", "root"
            if member.islnk():
                # A second name of a file is a file of its own.
                member.type, member.size, member.linkname = tarfile.REGTYPE, status.st_size, ""
            if executable and name.endswith(".sh") and member.isreg():
                member.mode |= 0o755
            if member.isreg():
                with path.open("rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)
    return gzip.compress(out.getvalue(), 6, mtime=0)


def odd_members(directory: Path, *, built: bool = False) -> list[str]:
    """Returns what cannot be taken of a directory, each with the reason. Blocks.

    Args:
        directory: The directory; one that is not there has nothing odd.
        built: Whether an image is built of it, which may have any links.
    """
    found = []
    for path in _below(directory):
        mode, name = path.lstat().st_mode, str(path.relative_to(directory.parent))
        if stat.S_ISLNK(mode):
            inside = os.path.normpath(path.parent.relative_to(directory) / os.readlink(path))
            if not built and (inside.startswith("/") or inside.split("/")[0] == ".."):
                found.append(f"{name}: a link to {os.readlink(path)!r}, which leads out of {directory.name}")
        elif not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            found += [] if built else [f"{name}: neither a file nor a directory nor a link"]
        elif not os.access(path, os.R_OK):
            found.append(f"{name}: may not be read")
    return found


def empty_directories(*names: str) -> bytes:
    """Returns a tar archive of empty directories."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(member)
    return out.getvalue()


def _below(directory: Path) -> Iterator[Path]:
    for place, directories, files in os.walk(directory):
        directories.sort()
        yield from (Path(place, name) for name in sorted([*directories, *files]))
