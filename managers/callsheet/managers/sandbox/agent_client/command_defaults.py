"""Defaults of the commands of one sandbox."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from callsheet.managers.sandbox.errors import InputRefusedError
from callsheet.managers.sandbox.files.images.oci import ImageConfig
from callsheet.managers.sandbox.files.paths import checked_path
from callsheet.managers.sandbox.settings import Isolation
from callsheet.v1 import action_pb2
from callsheet.v1.refusals import RefusedError
from callsheet.v1.rules.commands import check_variables

# What programs run at their start, or are changed by before it: shells, the dynamic loader and Python.
_START_UP = frozenset({"BASH_ENV", "ENV", "LD_AUDIT", "LD_PRELOAD"})
_START_UP_PREFIX = "PYTHON"


@dataclass(frozen=True, slots=True)
class CommandDefaults:
    """Defaults of one sandbox.

    Attributes:
        environment: Variables; those of a command come on top.
        directory: A checked path that relative paths begin from; empty for the sandbox's working directory.
        max_output_bytes: Bytes of stdout and of stderr to keep, each; 0 for the manager's default.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    max_output_bytes: int = 0


def read_defaults(reset: action_pb2.EnvResetInput, isolation: Isolation) -> CommandDefaults:
    """Returns the defaults that an env_reset asks for.

    Raises:
        InputRefusedError: A variable or the working directory breaks a rule, or its commands cannot run as that user.
    """
    asked = reset.defaults
    check_environment(asked.environment, "defaults.environment")
    # With an image its passwd says which users there are.
    has_users = isolation is Isolation.BUBBLEWRAP and (bool(reset.image) or reset.HasField("build"))
    own = own_user(isolation)
    if asked.user and not has_users and asked.user not in own:
        rule = (
            f"must be {' or '.join(map(repr, own))}: one user is mapped into the sandbox, and runs all of its commands"
        )
        raise InputRefusedError("user_refused", f"defaults.user: {asked.user[:200]!r}: {rule}")
    return CommandDefaults(
        environment=dict(asked.environment),
        directory=checked_path(asked.working_directory, allow_empty=True),
        max_output_bytes=asked.max_output_bytes,
    )


def over_image(defaults: CommandDefaults, config: ImageConfig) -> CommandDefaults:
    """Returns defaults with those of an image below; whom it runs commands as is not among them."""
    return replace(
        defaults,
        environment=merged_environment(config.environment, defaults.environment),
        directory=defaults.directory or config.working_directory,
    )


def check_environment(environment: Mapping[str, str], field_name: str = "environment") -> None:
    """Raises InputRefusedError for a variable that no process can have."""
    try:
        check_variables(field_name, environment)
    except RefusedError as refusal:
        message = f"{refusal.field}: {refusal.value!r}: {refusal.rule}"
        raise InputRefusedError("bad_environment", message) from None


def own_user(isolation: Isolation) -> tuple[str, ...]:
    """Returns the names of the one user that a sandbox without an image has."""
    if isolation is Isolation.BUBBLEWRAP:
        return ("sandbox", "1000")
    if isolation is Isolation.DOCKER:
        # Its number differs from sandbox to sandbox.
        return ("sandbox",)
    try:
        return (pwd.getpwuid(os.geteuid()).pw_name, str(os.geteuid()))
    except KeyError:
        return (str(os.geteuid()),)


def merged_environment(below: Mapping[str, str], above: Mapping[str, str]) -> dict[str, str]:
    """Returns variables, those of `above` on top. A PYTHONPATH of `above` comes before the other instead."""
    environment = {**below, **above}
    paths = [value for value in (above.get("PYTHONPATH"), below.get("PYTHONPATH")) if value]
    if paths:
        environment["PYTHONPATH"] = ":".join(paths)
    return environment


def judging_environment(below: Mapping[str, str], packages: Sequence[str], home: str) -> dict[str, str]:
    """Returns the default variables of a command that judges what ran before in its sandbox.

    Args:
        below: Those of every command of the sandbox.
        packages: Directories of Python packages that nobody inside can write.
        home: Its home, which nobody has written to.
    """
    kept = {
        name: value for name, value in below.items() if name not in _START_UP and not name.startswith(_START_UP_PREFIX)
    }
    path = {"PYTHONPATH": ":".join(packages)} if packages else {}
    return {**kept, **path, "HOME": home, "PYTHONNOUSERSITE": "1"}
