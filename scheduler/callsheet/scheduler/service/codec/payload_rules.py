"""Rules for the payloads of the five kinds. Each function returns the stored payloads that its input refers to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from callsheet.scheduler.core.words.model import invalid
from callsheet.scheduler.service.codec.rules import at_least, blob, few, identifier, known, seconds, token_ids, within
from callsheet.v1 import action_pb2, common_pb2

References = list[common_pb2.PayloadReference]

# Both are less than what the kernel's own limits can hold.
MAX_DISK_MIB = 1 << 30
MAX_PROCESSES = 1_000_000
MAX_DOWNLOADS = 32
MAX_PLACES = 64
MAX_BUILD_ARGUMENTS = 64
MAX_STOP_TEXTS = 64
MAX_STOP_CHARACTERS = 1024
_LOG_PROBS_MODES = frozenset(action_pb2.LogProbsMode.values())
_PLACE = re.compile(r"(?=.{3,270}\Z)[A-Za-z0-9.*_:\[\]-]+:[1-9][0-9]{0,4}")
_SESSION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_IMAGE = re.compile(r"(?=.{1,240}\Z)[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9][A-Za-z0-9._:-]*)*(@sha256:[0-9a-f]{64})?")


def check_generate(generate: action_pb2.GenerateInput) -> References:
    """A prompt and sane sampling."""
    token_ids("generate.prompt_token_ids", generate.prompt_token_ids)
    sampling = generate.sampling
    at_least("generate.sampling.max_new_tokens", sampling.max_new_tokens, 1)
    at_least("generate.sampling.temperature", sampling.temperature, 0.0)
    within("generate.sampling.top_p", sampling.top_p, 0.0, 1.0)
    at_least("generate.sampling.top_k", sampling.top_k, 0)
    token_ids("generate.sampling.stop_token_ids", sampling.stop_token_ids, required=False)
    few("generate.sampling.stop", len(sampling.stop), MAX_STOP_TEXTS, "texts")
    for index, text in enumerate(sampling.stop):
        if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            rule = f"must have 1 to {MAX_STOP_CHARACTERS} characters"
            raise invalid(f"generate.sampling.stop[{index}]", f"{len(text)} characters", rule)
    known("generate.sampling.log_probs_mode", sampling.log_probs_mode, _LOG_PROBS_MODES)
    return []


def check_env_reset(env_reset: action_pb2.EnvResetInput) -> References:
    """Files, a set-up command if any, and sizes."""
    references = check_files("env_reset.files", env_reset.files)
    if env_reset.HasField("set_up"):
        references += check_command("env_reset.set_up", env_reset.set_up)
    within("env_reset.disk_mib", env_reset.disk_mib, 0, MAX_DISK_MIB)
    within("env_reset.max_processes", env_reset.max_processes, 0, MAX_PROCESSES)
    check_image("env_reset.image", env_reset.image)
    if env_reset.HasField("build"):
        references += _check_build(env_reset)
    _check_defaults(env_reset.defaults)
    few("env_reset.network", len(env_reset.network), MAX_PLACES, "places")
    for index, place in enumerate(env_reset.network):
        if not _PLACE.fullmatch(place):
            raise invalid(f"env_reset.network[{index}]", place, 'must be "HOST:PORT" in at most 270 characters')
    return references


def _check_build(env_reset: action_pb2.EnvResetInput) -> References:
    if env_reset.image:
        raise invalid("env_reset.image", env_reset.image, "must be empty where build is set")
    build = env_reset.build
    if build.dockerfile:
        check_path("env_reset.build.dockerfile", build.dockerfile)
    _check_environment("env_reset.build.arguments", build.arguments)
    few("env_reset.build.arguments", len(build.arguments), MAX_BUILD_ARGUMENTS, "arguments")
    seconds("env_reset.build.timeout", build.timeout)
    return blob("env_reset.build.context", build.context)


def check_image(field: str, image: str) -> None:
    """The name of a root file system, or none."""
    if image and not _IMAGE.fullmatch(image):
        rule = (
            "must be 1 to 240 letters, digits, '.', '_', '-', ':' or '/', in components that begin with none of them, "
            "and may end with '@sha256:' and 64 hexadecimal digits"
        )
        raise invalid(field, image, rule)


def _check_defaults(defaults: action_pb2.CommandDefaults) -> None:
    _check_environment("env_reset.defaults.environment", defaults.environment)
    if defaults.working_directory:
        check_path("env_reset.defaults.working_directory", defaults.working_directory)
    if defaults.user:
        identifier("env_reset.defaults.user", defaults.user)
    seconds("env_reset.defaults.start_to_close", defaults.start_to_close)
    at_least("env_reset.defaults.max_output_bytes", defaults.max_output_bytes, 0)


def check_env_step(env_step: action_pb2.EnvStepInput) -> References:
    """Files, a command, the session it runs in if any, and paths to download."""
    references = check_files("env_step.files", env_step.files)
    if not env_step.HasField("command"):
        raise invalid("env_step.command", "", "must be set")
    if env_step.session:
        _check_session(env_step)
    few("env_step.download", len(env_step.download), MAX_DOWNLOADS, "paths")
    for index, path in enumerate(env_step.download):
        check_path(f"env_step.download[{index}]", path)
    return references + check_command("env_step.command", env_step.command)


def check_tool_call(tool_call: action_pb2.ToolCallInput) -> References:
    """A method, and arguments if any."""
    identifier("tool_call.method", tool_call.method)
    return blob("tool_call.arguments", tool_call.arguments) if tool_call.HasField("arguments") else []


def check_command(field: str, command: action_pb2.Command) -> References:
    """A program, a safe working directory, and stdin if any."""
    program = command.WhichOneof("program")
    if program is None:
        raise invalid(field, "", "must have exactly one of argv, shell and python")
    if program == "argv" and (not command.argv.arguments or not command.argv.arguments[0]):
        raise invalid(f"{field}.argv", "[]", "must name a program")
    if program != "argv" and not getattr(command, program):
        raise invalid(f"{field}.{program}", "", "must not be empty")
    if "\0" in command.shell or "\0" in command.python or any("\0" in argument for argument in command.argv.arguments):
        raise invalid(f"{field}.{program}", "a NUL", "must not contain NUL")
    _check_environment(f"{field}.environment", command.environment)
    if command.working_directory:
        check_path(f"{field}.working_directory", command.working_directory)
    at_least(f"{field}.max_output_bytes", command.max_output_bytes, 0)
    return blob(f"{field}.stdin", command.stdin) if command.HasField("stdin") else []


def _check_environment(field: str, environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name:
            raise invalid(field, name, "names must not be empty nor contain '=' or NUL")
        if "\0" in value:
            raise invalid(f"{field}[{name}]", "a NUL", "must not contain NUL")


def _check_session(env_step: action_pb2.EnvStepInput) -> None:
    command = env_step.command
    if not _SESSION_NAME.fullmatch(env_step.session):
        raise invalid("env_step.session", env_step.session, "must have 1 to 64 letters, digits, '-', '_' or '.'")
    if command.WhichOneof("program") == "argv":
        raise invalid("env_step.command.argv", env_step.session, "must be shell or python in a session")
    for name, is_given in (
        ("working_directory", bool(command.working_directory)),
        ("stdin", command.HasField("stdin")),
    ):
        if is_given:
            raise invalid(f"env_step.command.{name}", env_step.session, "must be unset in a session, which has its own")


def check_files(field: str, files: Iterable[action_pb2.SandboxFile]) -> References:
    """Files with a path and a content."""
    references: References = []
    for index, file in enumerate(files):
        check_path(f"{field}[{index}].path", file.path)
        within(f"{field}[{index}].mode", file.mode, 0, 0o7777)
        references += blob(f"{field}[{index}].content", file.content)
    return references


def check_path(field: str, path: str) -> None:
    """A path in a sandbox: relative to its working directory, or absolute within it."""
    if not path or "\0" in path or ".." in path.split("/"):
        raise invalid(field, path, "must not be empty nor contain '..' or NUL")
