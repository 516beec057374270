"""Reads what an action asks of a sandbox: checked, with its payloads fetched."""

from __future__ import annotations

from collections.abc import Iterable

from callsheet.managers.executor import Attempt, PayloadAccess
from callsheet.managers.sandbox.agent_client.command_defaults import (
    CommandDefaults,
    check_environment,
    merged_environment,
)
from callsheet.managers.sandbox.backend import CommandSpec, FileSpec, SandboxSpec, SessionLanguage, StepSpec
from callsheet.managers.sandbox.errors import InputRefusedError
from callsheet.managers.sandbox.files.paths import checked_path
from callsheet.managers.sandbox.isolation.kernel_bounds import most_processes
from callsheet.managers.sandbox.memory_ledger import MemoryTerms, Stay
from callsheet.managers.sandbox.network.destinations import PROXY_PORT, Destination, covered
from callsheet.managers.sandbox.settings import FEWEST_MEMORY_MIB, Isolation, SandboxSettings
from callsheet.v1 import action_pb2
from callsheet.v1.refusals import RefusedError
from callsheet.v1.rules.commands import check_command

# Lower ones are opened by nobody in a sandbox.
_LEAST_OWN_PORT = 1024
_DEFAULT_OUTPUT_BYTES = 1 << 20
_DEFAULT_MODE = 0o644
# The kernel's MAX_ARG_STRLEN, less the NUL at the end.
_LONGEST_ARGUMENT = 131071


async def read_files(
    files: Iterable[action_pb2.SandboxFile], payloads: PayloadAccess, defaults: CommandDefaults
) -> list[FileSpec]:
    """Returns the files to write.

    Raises:
        InputRefusedError: A path is none that a sandbox can have.
        PayloadError: A payload cannot be read.
    """
    specs = []
    for file in files:
        path = checked_path(file.path, below=defaults.directory, allow_empty=file.unpack)
        content = await payloads.read(file.content)
        specs.append(FileSpec(path, content, file.unpack, file.mode or _DEFAULT_MODE))
    return specs


async def read_command(
    command: action_pb2.Command, payloads: PayloadAccess, settings: SandboxSettings, defaults: CommandDefaults
) -> CommandSpec:
    """Returns the command to run.

    Raises:
        InputRefusedError: Its text, a variable or its working directory breaks a rule.
        PayloadError: Its standard input cannot be read.
    """
    arguments = _arguments(command)
    stdin = await payloads.read(command.stdin) if command.HasField("stdin") else b""
    return CommandSpec(
        arguments=arguments,
        environment=merged_environment(defaults.environment, command.environment),
        working_directory=checked_path(command.working_directory, below=defaults.directory, allow_empty=True),
        stdin=stdin,
        max_output_bytes=_output_bytes(command, settings, defaults),
    )


def read_session_step(step: action_pb2.EnvStepInput, settings: SandboxSettings, defaults: CommandDefaults) -> StepSpec:
    """Returns the step of a session to run.

    Raises:
        InputRefusedError: Its text or a variable breaks a rule.
    """
    command, program = step.command, step.command.WhichOneof("program")
    _check(command)
    if program is None or program == "argv":
        raise InputRefusedError("bad_command", "program: one of shell and python must be set in a session")
    return StepSpec(
        session=step.session,
        language=SessionLanguage(program),
        text=command.shell or command.python,
        max_output_bytes=_output_bytes(command, settings, defaults),
        environment=dict(command.environment),
        directory=defaults.directory,
        session_environment=defaults.environment,
    )


def read_download(paths: Iterable[str], defaults: CommandDefaults) -> list[tuple[str, str]]:
    """Returns each path as it was given and as it was checked; raises InputRefusedError."""
    return [(path, checked_path(path, below=defaults.directory)) for path in paths]


def sandbox_spec(sandbox_id: str, attempt: Attempt, cores: frozenset[int], settings: SandboxSettings) -> SandboxSpec:
    """Returns what the sandbox of an attempt is to be: memory as granted, sizes as asked for or by default.

    Raises:
        InputRefusedError: It has less memory than any sandbox needs, more processes than one may have, or wants to
            reach what it may not.
    """
    reset = attempt.action.env_reset
    memory_mib = attempt.grant.resources.get("memory", 0) or settings.default_memory_mib
    if memory_mib < FEWEST_MEMORY_MIB:
        needs = f"a sandbox needs at least {FEWEST_MEMORY_MIB} MiB, which its agent and the smallest command take"
        raise InputRefusedError("too_little_memory", f"memory: {memory_mib} MiB: {needs}")
    return SandboxSpec(
        sandbox_id=sandbox_id,
        memory_mib=memory_mib,
        # Files count as memory: a disk as large as that would be full only after the kernel has killed everything.
        disk_mib=reset.disk_mib or min(settings.default_disk_mib, max(1, memory_mib // 2)),
        max_processes=_processes(reset.max_processes, settings),
        cores=cores,
        network=_network(reset.network, settings),
        terms=MemoryTerms(guaranteed=reset.guaranteed_memory, expected_s=attempt.grant.expected_execution_s)
        if attempt.action.HasField("env_reset")
        else MemoryTerms(Stay.ATTEMPT, beside=attempt.grant.sandbox_id, expected_s=attempt.grant.expected_execution_s),
    )


def _processes(wanted: int, settings: SandboxSettings) -> int:
    most = min(settings.most_processes, most_processes())
    if wanted > most:
        rule = f"must be at most {most}: one sandbox must leave room for others"
        raise InputRefusedError("too_many_processes", f"max_processes: {wanted}: {rule}")
    return wanted or min(settings.default_max_processes, most)


def _network(wanted: Iterable[str], settings: SandboxSettings) -> tuple[Destination, ...]:
    places = []
    for text in wanted:
        try:
            place = Destination.parse(text)
        except ValueError as error:
            raise InputRefusedError("network_refused", f"network: {error}") from error
        if place.is_loopback and (place.port == PROXY_PORT or place.port < _LEAST_OWN_PORT):
            rule = f"a port of the loopback must be at least {_LEAST_OWN_PORT} and not {PROXY_PORT}"
            raise InputRefusedError("network_refused", f"network: {text!r}: {rule}, as the sandbox opens it too")
        if settings.isolation is Isolation.NONE:
            # Its commands reach what the machine does, named or not.
            continue
        if not covered(place, settings.network):
            allowed = ", ".join(map(str, settings.network)) or "nothing"
            raise InputRefusedError(
                "network_refused", f"network: {text!r}: sandboxes of this manager may reach {allowed}"
            )
        places.append(place)
    return tuple(dict.fromkeys(places))


def _output_bytes(command: action_pb2.Command, settings: SandboxSettings, defaults: CommandDefaults) -> int:
    wanted = command.max_output_bytes or defaults.max_output_bytes or _DEFAULT_OUTPUT_BYTES
    return max(1, min(wanted, settings.max_output_bytes))


def _arguments(command: action_pb2.Command) -> tuple[str, ...]:
    _check(command)
    program = command.WhichOneof("program")
    if program == "argv":
        arguments = tuple(command.argv.arguments)
    else:
        arguments = ("/bin/sh", "-c", command.shell) if program == "shell" else ("python3", "-c", command.python)
    for argument in arguments:
        if len(argument.encode()) > _LONGEST_ARGUMENT:
            raise InputRefusedError(
                "bad_command",
                f"program: an argument of {len(argument.encode())} bytes: must have at most {_LONGEST_ARGUMENT}",
            )
    return arguments


def _check(command: action_pb2.Command) -> None:
    """Checks a command by the contract's rules; variables and paths have reasons of their own."""
    check_environment(command.environment)
    checked_path(command.working_directory, allow_empty=True)
    try:
        check_command("command", command)
    except RefusedError as refusal:
        raise InputRefusedError("bad_command", f"{refusal.field}: {refusal.value!r}: {refusal.rule}") from None
