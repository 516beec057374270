"""Snapshots: the files that a set-up ended with, known by everything that they came from."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, FileSpec

# Part of every key: what was kept in another way, or set up in another environment, is not found any more.
_FORM = 1
_FEW_FILES, _FEW_BYTES = 4, 1 << 20
_NUMBERS = ("exit_code", "signal", "stdout_dropped", "stderr_dropped", "wall_s", "cpu_s", "peak_memory_bytes")


@dataclass(frozen=True, slots=True)
class SetUp:
    """How a sandbox is set up.

    Attributes:
        files: Written first, in this order.
        command: Run then; None for nothing.
    """

    files: tuple[FileSpec, ...] = ()
    command: CommandSpec | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.files and self.command is None

    @property
    def is_short(self) -> bool:
        """Whether doing it again takes no longer than looking for what it left."""
        return (
            self.command is None
            and len(self.files) <= _FEW_FILES
            and not any(file.unpack for file in self.files)
            and sum(len(file.content) for file in self.files) <= _FEW_BYTES
        )


def snapshot_key(image_digest: str, set_up: SetUp, environment: Sequence[str]) -> str:
    """Returns the name of a snapshot: alike exactly for alike images, files, commands and environments.

    Args:
        image_digest: Of the image; empty for the machine's own system.
        set_up: The files and the command.
        environment: Whatever else the files may depend on, such as directories that are shown inside.
    """
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        # Lengths first, so that no two lists of parts look alike.
        for part in parts:
            content = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
            digest.update(f"{len(content)}:".encode())
            digest.update(content)

    add(_FORM, image_digest, len(environment), *environment, len(set_up.files))
    for file in set_up.files:
        add(file.path, file.unpack, file.mode, hashlib.sha256(file.content).digest())
    command = set_up.command
    if command is not None:
        add(len(command.arguments), *command.arguments, len(command.environment))
        for name, value in sorted(command.environment.items()):
            add(name, value)
        add(command.working_directory, hashlib.sha256(command.stdin).digest(), command.max_output_bytes)
    return f"set-up-{digest.hexdigest()}"


def encode_outcome(outcome: CommandOutcome | None) -> bytes:
    """Returns a set-up command's outcome as it is kept beside the snapshot; empty for no command."""
    if outcome is None:
        return b""
    kept: dict[str, object] = {name: getattr(outcome, name) for name in _NUMBERS}
    for name in ("stdout", "stderr"):
        kept[name] = base64.b64encode(getattr(outcome, name)).decode()
    return json.dumps(kept).encode()


def decode_outcome(note: bytes) -> CommandOutcome | None:
    """Undoes `encode_outcome`."""
    if not note:
        return None
    kept = json.loads(note)
    for name in ("stdout", "stderr"):
        kept[name] = base64.b64decode(kept[name])
    return CommandOutcome(**kept)
