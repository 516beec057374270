"""Commands in sandboxes, the files that go with them, and their defaults.

A model may have written the texts of an action: a text that breaks a rule is refused before it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, TypeAlias

from callsheet.client.errors import HALF, bad_text, invalid
from callsheet.client.words.arguments import instance, listed
from callsheet.v1.refusals import CLIMB, NUL

CULPRITS: Final = frozenset({"", NUL, HALF, CLIMB})
# In a text as it is, and in the escapes of JSON and of Python.
_SIGNS: Final = {
    NUL: re.compile(r"\0|\\u0000|\\x00"),
    HALF: re.compile("[\ud800-\udfff]|\\\\u[dD][89a-fA-F]"),
    CLIMB: re.compile(r"\.\."),
}


@dataclass(frozen=True, slots=True)
class SandboxFile:
    """A file to write into a sandbox.

    Attributes:
        path: Relative to the working directory, or absolute within the sandbox; no "..".
        content: The bytes.
        unpack: `content` is a tar archive (plain or gzip) to unpack at `path`.
        mode: Permission bits; None means 0644. Ignored for archives.
    """

    path: str
    content: bytes = field(repr=False)
    unpack: bool = False
    mode: int | None = None


class Language(Enum):
    """The language of a command's text."""

    SHELL = "shell"
    PYTHON = "python"


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run in a sandbox; made by `Command.argv`, `Command.shell` or `Command.python`.

    Attributes:
        program: An argument vector (executed directly) or a text (run by `sh -c` or `python3 -c`, or in a session).
        environment: Variables on top of the sandbox's own. In a session they are set in it, and stay.
        working_directory: Relative to the sandbox's working directory, or absolute within it; empty is that directory.
        stdin: Standard input.
        max_output_bytes: Bytes of stdout and of stderr to keep, each (head and tail); None takes the default (1 MiB).
        language: The text's language.
    """

    program: tuple[str, ...] | str
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = ""
    stdin: bytes = field(default=b"", repr=False)
    max_output_bytes: int | None = None
    language: Language = Language.SHELL

    @classmethod
    def argv(
        cls,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        working_directory: str = "",
        stdin: bytes = b"",
        max_output_bytes: int | None = None,
    ) -> Command:
        """A program and its arguments, executed directly."""
        return cls(arguments, environment or {}, working_directory, stdin, max_output_bytes)

    @classmethod
    def shell(
        cls,
        script: str,
        *,
        environment: Mapping[str, str] | None = None,
        working_directory: str = "",
        stdin: bytes = b"",
        max_output_bytes: int | None = None,
    ) -> Command:
        """A script, run by `sh -c`; in a session by its bash, or by sh if there is no bash."""
        return cls(
            instance("script", script, str, "text for the shell"),
            environment or {},
            working_directory,
            stdin,
            max_output_bytes,
        )

    @classmethod
    def python(
        cls,
        code: str,
        *,
        environment: Mapping[str, str] | None = None,
        working_directory: str = "",
        stdin: bytes = b"",
        max_output_bytes: int | None = None,
    ) -> Command:
        """Python code, run by `python3 -c`; in a session by its interpreter, which shows the value of the last line."""
        text = instance("code", code, str, "Python code as text")
        return cls(text, environment or {}, working_directory, stdin, max_output_bytes, Language.PYTHON)


CommandLike: TypeAlias = Command | str | Sequence[str]
"""A command as people type it: a text is for the shell, a sequence is a program and its arguments."""


@dataclass(frozen=True, slots=True)
class CommandDefaults:
    """The defaults of the commands of a sandbox, its set-up command included.

    Attributes:
        environment: Variables; those of a command come on top.
        working_directory: The directory that relative paths begin from: absolute within the sandbox, or relative to its
            own. It is made if it is not there. Empty: the sandbox's own.
        user: Name or number of the user to run as; empty: the sandbox's own. A manager that cannot change users fails
            the action as ENV `user_refused`.
        start_to_close_s: Time-out of env_steps and rewards that have none, in seconds; None takes the server's default.
        max_output_bytes: Bytes of stdout and of stderr to keep, each; None takes the default (1 MiB).
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = ""
    user: str = ""
    start_to_close_s: float | None = None
    max_output_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """An image that managers build of a Dockerfile, each once. Alike content, Dockerfile and arguments are one image.

    Attributes:
        context: A tar archive, plain or compressed, of the files that the Dockerfile may copy, itself among them.
        dockerfile: The Dockerfile's path in the archive.
        arguments: Values of its ARGs.
        timeout_s: The most seconds that a build may take once it begins; None takes the manager's limit.
    """

    context: bytes = field(repr=False)
    dockerfile: str = "Dockerfile"
    arguments: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None


FilesLike: TypeAlias = Iterable[SandboxFile] | Mapping[str, str | bytes]
"""Files as people type them: values of `SandboxFile`, or contents by path. A text is written as UTF-8."""


def as_files(given: FilesLike) -> Sequence[SandboxFile]:
    """Returns files as they were typed as values of `SandboxFile`; other values are refused when they are encoded."""
    if isinstance(given, Mapping):
        return tuple(SandboxFile(path, as_bytes(f"files[{path!r}]", content)) for path, content in given.items())
    return listed(given)


def as_bytes(where: str, given: str | bytes) -> bytes:
    """Returns bytes as they are, and a text as UTF-8; raises InvalidArgumentError for any other value."""
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise bad_text(where, given, "bytes, or text that UTF-8 can write", HALF) from error
    return instance(where, given, bytes, "bytes, or text")


def with_stdin(command: Command, stdin: str | bytes) -> Command:
    """Returns a command with that standard input, or with its own if that is empty.

    Raises:
        InvalidArgumentError: It has one of its own, too.
    """
    if not stdin:
        return command
    if command.stdin:
        raise invalid("stdin", repr(stdin), "stands in the command already; give it once")
    return replace(command, stdin=as_bytes("stdin", stdin))


def as_command(given: CommandLike, where: str) -> Command:
    """Returns a command as it was typed as a `Command`.

    Args:
        given: A `Command`, a text for the shell, or a program and its arguments.
        where: The argument's name, for an error.

    Raises:
        InvalidArgumentError: It is none of these.
    """
    if isinstance(given, str):
        return Command(given)
    if isinstance(given, list | tuple):
        return Command(tuple(instance(f"{where}[{index}]", part, str, "text") for index, part in enumerate(given)))
    return instance(where, given, Command, "a Command, a shell text, or a list of a program and its arguments")


def culprits_of(text: str) -> frozenset[str]:
    """Returns the culprits of `BadTextError` that a text may have brought about."""
    return frozenset(("", *(culprit for culprit, sign in _SIGNS.items() if sign.search(text))))
