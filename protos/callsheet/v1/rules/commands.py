"""Rules for commands, files and paths, and for the actions env_reset and env_step, which are made of them.

A model may have written the texts of an env_step or a reward: their refusals carry a `culprit`. Each function returns
the stored payloads that its message refers to, and raises RefusedError INVALID_ARGUMENT.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from callsheet.v1 import action_pb2
from callsheet.v1.names import LONGEST_COMPONENT, LONGEST_PATH, MAX_COMMAND_BYTES, MAX_DOWNLOADS
from callsheet.v1.refusals import CLIMB, NUL, bad_text, invalid
from callsheet.v1.rules.fields import References, at_least, blob, few, identifier, seconds, within

VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name of a variable."""
# Both are less than what the kernel's own limits can hold.
_MAX_DISK_MIB: Final = 1 << 30
_MAX_PROCESSES: Final = 1_000_000
_MAX_PLACES: Final = 64
_MAX_BUILD_ARGUMENTS: Final = 64
_PLACE: Final = re.compile(r"(?=.{3,270}\Z)[A-Za-z0-9.*_:\[\]-]+:[1-9][0-9]{0,4}")
_SESSION_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_IMAGE: Final = re.compile(
    r"(?=.{1,240}\Z)[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9][A-Za-z0-9._:-]*)*(@sha256:[0-9a-f]{64})?"
)


def check_path(field: str, path: str) -> None:
    """Checks a path in a sandbox: relative to its working directory, or absolute within it."""
    if path.isascii() and 0 < len(path) <= LONGEST_COMPONENT and CLIMB not in path and NUL not in path:
        return
    parts = path.split("/")
    if NUL in path:
        raise bad_text(field, path, "must not contain NUL", NUL)
    if CLIMB in parts:
        raise bad_text(field, path, "must not contain '..'", CLIMB)
    if not path:
        raise bad_text(field, path, "must not be empty")
    if len(path.encode()) > LONGEST_PATH or any(len(part.encode()) > LONGEST_COMPONENT for part in parts):
        rule = f"must have at most {LONGEST_PATH} bytes, and {LONGEST_COMPONENT} between two slashes"
        raise bad_text(field, path, rule)


def check_files(field: str, files: Iterable[action_pb2.SandboxFile]) -> References:
    """Checks files, each with a path and a content."""
    references: References = []
    for index, file in enumerate(files):
        at = f"{field}[{index}]"
        check_path(f"{at}.path", file.path)
        if mode := file.mode:
            within(f"{at}.mode", mode, 0, 0o7777)
        references += blob(f"{at}.content", file.content)
    return references


def check_variables(field: str, variables: Mapping[str, str]) -> int:
    """Checks the variables of a command; returns their characters."""
    characters = 0
    for name in variables:
        value = variables[name]
        if not VARIABLE.fullmatch(name):
            rule = "a name must have letters, digits and '_' only, and must not begin with a digit"
            raise bad_text(field, name, rule, NUL if NUL in name else "")
        if NUL in value:
            # Values may be secrets, so no refusal shows one.
            raise bad_text(f"{field}[{name}]", "a NUL", "must not contain NUL", NUL)
        characters += len(name) + len(value)
    return characters


def check_command(field: str, command: action_pb2.Command) -> References:
    """Checks a program, its variables and working directory, and its standard input if any."""
    program = command.WhichOneof("program")
    if program is None:
        raise invalid(field, "", "must have exactly one of argv, shell and python")
    words = command.argv.arguments if program == "argv" else (getattr(command, program),)
    if not words or not words[0]:
        raise bad_text(f"{field}.{program}", "", "must not be empty")
    if any(NUL in word for word in words):
        raise bad_text(f"{field}.{program}", "a NUL", "must not contain NUL", NUL)
    characters = sum(map(len, words))
    if variables := command.environment:
        characters += check_variables(f"{field}.environment", variables)
    # A character takes at most four bytes, so most texts need not be encoded.
    if characters > MAX_COMMAND_BYTES // 4:
        size = sum(len(text.encode()) for text in (*words, *variables, *variables.values()))
        if size > MAX_COMMAND_BYTES:
            rule = f"must have at most {MAX_COMMAND_BYTES} bytes with its variables"
            raise bad_text(f"{field}.{program}", f"{size} bytes", rule)
    if directory := command.working_directory:
        check_path(f"{field}.working_directory", directory)
    if command.max_output_bytes < 0:
        at_least(f"{field}.max_output_bytes", command.max_output_bytes, 0)
    return blob(f"{field}.stdin", command.stdin) if command.HasField("stdin") else []


def check_env_step(env_step: action_pb2.EnvStepInput) -> References:
    """Checks files, a command, the session that it runs in if any, and paths to download."""
    files = env_step.files
    references = check_files("env_step.files", files) if files else []
    if not env_step.HasField("command"):
        raise invalid("env_step.command", "", "must be set")
    if env_step.session:
        _check_session(env_step)
    if download := env_step.download:
        if len(download) > MAX_DOWNLOADS:
            raise bad_text("env_step.download", f"{len(download)} paths", f"must have at most {MAX_DOWNLOADS}")
        for index, path in enumerate(download):
            check_path(f"env_step.download[{index}]", path)
    return references + check_command("env_step.command", env_step.command)


def _check_session(env_step: action_pb2.EnvStepInput) -> None:
    command = env_step.command
    if not _SESSION_NAME.fullmatch(env_step.session):
        raise bad_text("env_step.session", env_step.session, "must have 1 to 64 letters, digits, '-', '_' or '.'")
    if command.WhichOneof("program") == "argv":
        raise invalid("env_step.command.argv", env_step.session, "must be shell or python in a session")
    for name, is_given in (("working_directory", command.working_directory), ("stdin", command.HasField("stdin"))):
        if is_given:
            raise invalid(f"env_step.command.{name}", env_step.session, "must be unset in a session, which has its own")


def check_env_reset(env_reset: action_pb2.EnvResetInput) -> References:
    """Checks files, a set-up command if any, sizes, image, network and defaults."""
    references = check_files("env_reset.files", env_reset.files)
    if env_reset.HasField("set_up"):
        references += check_command("env_reset.set_up", env_reset.set_up)
    within("env_reset.disk_mib", env_reset.disk_mib, 0, _MAX_DISK_MIB)
    within("env_reset.max_processes", env_reset.max_processes, 0, _MAX_PROCESSES)
    check_image("env_reset.image", env_reset.image)
    if env_reset.HasField("build"):
        if env_reset.image:
            raise invalid("env_reset.image", env_reset.image, "must be empty where build is set")
        references += _check_build("env_reset.build", env_reset.build)
    if env_reset.HasField("defaults"):
        _check_defaults("env_reset.defaults", env_reset.defaults)
    few("env_reset.network", len(env_reset.network), _MAX_PLACES, "places")
    for index, place in enumerate(env_reset.network):
        if not _PLACE.fullmatch(place):
            raise invalid(f"env_reset.network[{index}]", place, 'must be "HOST:PORT" in at most 270 characters')
    return references


def check_image(field: str, image: str) -> None:
    """Checks the name of a root file system; it may be empty."""
    if image and not _IMAGE.fullmatch(image):
        rule = (
            "must be 1 to 240 letters, digits, '.', '_', '-', ':' or '/', in components that begin with none of them, "
            "and may end with '@sha256:' and 64 hexadecimal digits"
        )
        raise invalid(field, image, rule)


def _check_build(field: str, build: action_pb2.ImageBuild) -> References:
    if build.dockerfile:
        check_path(f"{field}.dockerfile", build.dockerfile)
    for name, value in build.arguments.items():
        if not name or "=" in name or NUL in name:
            raise invalid(f"{field}.arguments", name, "names must not be empty nor contain '=' or NUL")
        if NUL in value:
            raise invalid(f"{field}.arguments[{name}]", "a NUL", "must not contain NUL")
    few(f"{field}.arguments", len(build.arguments), _MAX_BUILD_ARGUMENTS, "arguments")
    seconds(f"{field}.timeout", build.timeout)
    return blob(f"{field}.context", build.context)


def _check_defaults(field: str, defaults: action_pb2.CommandDefaults) -> None:
    check_variables(f"{field}.environment", defaults.environment)
    if defaults.working_directory:
        check_path(f"{field}.working_directory", defaults.working_directory)
    if defaults.user:
        identifier(f"{field}.user", defaults.user)
    seconds(f"{field}.start_to_close", defaults.start_to_close)
    at_least(f"{field}.max_output_bytes", defaults.max_output_bytes, 0)
