"""Writes the files that docker-compose.yml needs beside it: secrets, and facts about this machine.

secrets/ca.pem, ca.key                 the authority; its key stays on this machine
secrets/{scheduler,gateway,dashboard,postgres,redis}.*   certificates of the servers, their keys (.key) and passwords
secrets/{sandbox,inference,reward,gateway,demo,admin}.token
secrets/access/tokens.json             the scheduler's file of tokens: only hashes
weights/                               weights that trainers publish by location
.env                                   the user that the containers run as, and the machine's cores and memory
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from callsheet.deploy.certificates import LOCAL, write_certificates
from callsheet.deploy.tokens import issue
from callsheet.managers.inference.settings import share_of_cores
from callsheet.managers.node import usable_memory_mib
from callsheet.options.private_files import make_private_directory, write_private_file
from callsheet.scheduler.access.identity import Scope

CONTAINER_ID: Final = 10_001
"""User and group of the containers where root sets the stack up."""
DEMO_JOB: Final = "demo"
_MANAGER_MIB: Final = 512
_SERVERS: Final = ("scheduler", "gateway", "dashboard", "postgres", "redis")
_DIALLED: Final = ("scheduler", "gateway", "dashboard")
_TOKENS: Final[Mapping[str, tuple[Scope, str]]] = {
    "admin": (Scope.ADMIN, ""),
    "sandbox": (Scope.MANAGER, "sandbox"),
    "inference": (Scope.MANAGER, "inference"),
    "reward": (Scope.MANAGER, "reward"),
    "demo": (Scope.JOB, DEMO_JOB),
    "gateway": (Scope.GATEWAY, ""),
}


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of the secrets, and user of the containers: the numbers of a user and of a group."""

    uid: int
    gid: int


def choose_owner(uid: int, gid: int) -> Owner:
    """The user who sets the stack up; for root an unprivileged one, as which nobody logs in."""
    return Owner(uid, gid) if uid != 0 else Owner(CONTAINER_ID, CONTAINER_ID)


def write_compose_files(project: Path, hosts: Sequence[str], owner: Owner) -> list[Path]:
    """Makes what is not there yet, and returns it. What is there stays: remove a file to have it made anew.

    Certificates that lack a host are signed again for the same key, with it.

    Args:
        project: The directory of docker-compose.yml.
        hosts: Names and addresses by which other machines dial the scheduler, the gateway and the dashboard.
        owner: Whose the files are to be; another user than this process's takes root.

    Raises:
        ValueError: A host is none, the authority that is there is none, or it cannot sign what lacks a host.
        TokenFileError: The file of tokens cannot be used.
        OSError: Something cannot be written.
    """
    directory = project / "secrets"
    made = [
        *write_certificates(
            directory, {name: (name, *LOCAL, *(hosts if name in _DIALLED else ())) for name in _SERVERS}
        ),
        *_passwords(directory),
        *_tokens(directory),
    ]
    (project / "weights").mkdir(exist_ok=True)
    for path in (directory, *directory.rglob("*"), project / "weights"):
        _give_away(path, owner)
    return [*made, *_environment(project / ".env", owner)]


def _passwords(directory: Path) -> Iterator[Path]:
    yield from _password(directory, "postgres.password", "database.url", _database_url)
    yield from _password(directory, "redis.acl", "redis.url", _redis_url, kept=_redis_users)


def _password(
    directory: Path, server: str, client: str, url: Callable[[str], str], kept: Callable[[str], str] = str
) -> Iterator[Path]:
    """Makes a password, as its server keeps it and as the URL that the scheduler uses; both or none."""
    if (directory / client).exists():
        return
    password = secrets.token_hex(32)
    for path, content in ((directory / server, kept(password)), (directory / client, url(password))):
        write_private_file(path, content)
        yield path


def _database_url(password: str) -> str:
    return (
        f"postgresql://callsheet:{password}@postgres:5432/callsheet?sslmode=verify-full&sslrootcert=/run/secrets/ca.pem"
    )


def _redis_url(password: str) -> str:
    return f"rediss://callsheet:{password}@redis:6379/0?ssl_ca_certs=/run/secrets/ca.pem"


def _redis_users(password: str) -> str:
    """Redis keeps a hash; whoever watches over it may do nothing but ask whether it is there."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    return (
        f"user default off\nuser callsheet on #{digest} ~callsheet:* &* +@all -@admin +config|get\n"
        "user health on nopass resetkeys -@all +ping\n"
    )


def _tokens(directory: Path) -> Iterator[Path]:
    make_private_directory(directory / "access")
    kept = directory / "access" / "tokens.json"
    for name, (scope, subject) in _TOKENS.items():
        path = directory / f"{name}.token"
        if not path.exists():
            write_private_file(path, issue(kept, scope.value, subject))
            yield path


def _give_away(path: Path, owner: Owner) -> None:
    if os.geteuid() != owner.uid:
        os.chown(path, owner.uid, owner.gid)


def _environment(path: Path, owner: Owner) -> Iterator[Path]:
    """Adds what is missing to the file of variables that compose reads, which may have settings of the user's own."""
    cores = len(os.sched_getaffinity(0))
    memory_mib = usable_memory_mib() // 2  # the rest is for the other containers
    known = {
        "CALLSHEET_UID": owner.uid,
        "CALLSHEET_GID": owner.gid,
        "CALLSHEET_CPUS": cores,
        "CALLSHEET_SHARED_CPUS": max(1, cores - share_of_cores(max(2, cores), None)),
        "CALLSHEET_MEMORY_MIB": memory_mib,
        "CALLSHEET_SANDBOX_LIMIT_MIB": memory_mib + _MANAGER_MIB,
    }
    content = path.read_text(encoding="utf-8") if path.exists() else ""
    there = set(re.findall(r"^[ \t]*(\w+)[ \t]*=", content, re.MULTILINE))
    missing = [f"{name}={value}\n" for name, value in known.items() if name not in there]
    if missing:
        write_private_file(path, content + ("\n" if content and not content.endswith("\n") else "") + "".join(missing))
        yield path
