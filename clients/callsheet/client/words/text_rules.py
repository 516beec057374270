"""Rules for the texts of actions that a model may have written. A wrong text is refused before it is sent. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from callsheet.client.errors import HALF, bad_text
from callsheet.client.words.commands import Command

NUL: Final = "\0"
CLIMB: Final = ".."
CULPRITS: Final = frozenset({"", NUL, HALF, CLIMB})

MAX_COMMAND_BYTES: Final = 1 << 20
"""Of the program, its arguments and its variables: no kernel takes more."""
MAX_TEXT: Final = 1 << 20
"""Characters of a text to be scored."""
_LONGEST_PATH: Final = 4096
_LONGEST_COMPONENT: Final = 255
_LONGEST_NAME: Final = 256
_MAX_DOWNLOADS: Final = 32
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SESSION_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HALF: Final = re.compile("[\ud800-\udfff]")
# In a text as it is, and in the escapes of JSON and of Python.
_SIGNS: Final = {
    NUL: re.compile(r"\0|\\u0000|\\x00"),
    HALF: re.compile("[\ud800-\udfff]|\\\\u[dD][89a-fA-F]"),
    CLIMB: re.compile(r"\.\."),
}


def culprits_of(text: str) -> frozenset[str]:
    """Returns the culprits of `BadTextError` that a text may have brought about."""
    return frozenset(("", *(culprit for culprit, sign in _SIGNS.items() if sign.search(text))))


def check_text(field: str, text: str) -> None:
    """Raises BadTextError for a NUL and for half of a surrogate pair. Another type is left to whoever encodes it."""
    if not isinstance(text, str):
        return
    if NUL in text:
        raise bad_text(field, text, "must not contain NUL", NUL)
    if _HALF.search(text):
        raise bad_text(field, text, "text that UTF-8 can write: it has half of a surrogate pair", HALF)


def check_path(field: str, path: str) -> None:
    """Raises BadTextError unless the text is a path in a sandbox."""
    check_text(field, path)
    if not isinstance(path, str):
        return
    parts = path.split("/")
    if CLIMB in parts:
        raise bad_text(field, path, "must not contain '..'", CLIMB)
    if not path:
        raise bad_text(field, path, "must not be empty")
    if len(path.encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_COMPONENT for part in parts):
        raise bad_text(field, path, f"at most {_LONGEST_PATH} bytes, and {_LONGEST_COMPONENT} between two slashes")


def check_command(where: str, command: Command) -> None:
    """Raises BadTextError for a command that no program can be given."""
    program = command.program
    words = (program,) if isinstance(program, str) else program
    if not isinstance(words, list | tuple):
        return
    named = f"{where}.{command.language.value}" if isinstance(program, str) else f"{where}.argv"
    if not words or words[0] == "":
        raise bad_text(named, "", "must not be empty")
    variables = command.environment if isinstance(command.environment, Mapping) else {}
    texts = [*words, *variables, *variables.values()]
    # The longest first: what is too long is not looked through.
    if sum(len(text) for text in texts if isinstance(text, str)) > MAX_COMMAND_BYTES:
        raise bad_text(named, str(words[0]), f"at most {MAX_COMMAND_BYTES} bytes with its variables")
    for word in words:
        check_text(named, word)
    for name, value in variables.items():
        check_text(f"{where}.environment", name)
        if isinstance(name, str) and not _VARIABLE.fullmatch(name):
            raise bad_text(f"{where}.environment", name, "a name has letters, digits and '_', and begins with no digit")
        check_text(f"{where}.environment[{name}]", value)
    if command.working_directory:
        check_path(f"{where}.working_directory", command.working_directory)


def check_session(field: str, session: str) -> None:
    """Raises BadTextError unless the text is a name of a session."""
    if isinstance(session, str) and session and not _SESSION_NAME.fullmatch(session):
        raise bad_text(field, session, "must have 1 to 64 letters, digits, '-', '_' or '.'")


def check_downloads(field: str, paths: tuple[str, ...]) -> None:
    """Raises BadTextError for more paths than an action may have, and for a text that is no path."""
    if len(paths) > _MAX_DOWNLOADS:
        raise bad_text(field, f"{len(paths)} paths", f"must have at most {_MAX_DOWNLOADS} paths")
    for index, path in enumerate(paths):
        check_path(f"{field}[{index}]", path)


def check_service_method(field: str, method: str) -> None:
    """Raises BadTextError unless the text is a name of a method."""
    if isinstance(method, str) and not (1 <= len(method) <= _LONGEST_NAME and method.isprintable()):
        raise bad_text(field, method, f"must have 1 to {_LONGEST_NAME} printable characters")


def check_scored(field: str, texts: Iterable[str]) -> None:
    """Raises BadTextError for texts that are too long to be scored."""
    characters = sum(len(text) for text in texts if isinstance(text, str))
    if characters > MAX_TEXT:
        raise bad_text(field, f"{characters} characters", f"must have at most {MAX_TEXT}")
